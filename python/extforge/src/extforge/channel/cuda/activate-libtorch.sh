# As conda-forge's libtorch for CUDA: the architectures that this torch holds device code for.
if [ -z "${CF_TORCH_CUDA_ARCH_LIST-}" ]; then
  export CF_TORCH_CUDA_ARCH_LIST="7.5;8.0;8.6;9.0;10.0;12.0" _EXTFORGE_SET_TORCH_ARCHS=1
fi
