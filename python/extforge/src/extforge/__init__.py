"""Build, install and prove PyTorch C++ and CUDA extensions the conda way."""
