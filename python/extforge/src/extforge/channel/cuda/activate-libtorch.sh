# As conda-forge's libtorch for CUDA: what extensions are compiled for, which is the architectures that this torch
# holds device code for, and PTX for later GPUs.
if [ -z "${CF_TORCH_CUDA_ARCH_LIST-}" ]; then
  export CF_TORCH_CUDA_ARCH_LIST="7.5;8.0;8.6;9.0;10.0;12.0+PTX" _EXTFORGE_SET_TORCH_ARCHS=1
fi
