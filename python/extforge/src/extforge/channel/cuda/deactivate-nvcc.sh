# As conda-forge's script: what was added to the compilers' flags goes when their own scripts unset them.
if [ -n "${_EXTFORGE_OLD_NVCC_PREPEND_FLAGS-}" ]; then
  export NVCC_PREPEND_FLAGS="$_EXTFORGE_OLD_NVCC_PREPEND_FLAGS"
else
  unset NVCC_PREPEND_FLAGS
fi
if [ -n "${_EXTFORGE_SET_CUDAARCHS-}" ]; then unset CUDAARCHS; fi
if [ -n "${_EXTFORGE_SET_NVCC_GENCODE-}" ]; then unset NVCC_GENCODE; fi
unset _EXTFORGE_OLD_NVCC_PREPEND_FLAGS _EXTFORGE_SET_CUDAARCHS _EXTFORGE_SET_NVCC_GENCODE
