# The environment of conda-forge's cuda-nvcc_linux-64. The name of this script sorts it after the C++ compiler's, whose
# flags it extends. As there, no CUDA_HOME is set, and only a package build gets a list of architectures.
if [ -z "${CXX-}" ]; then
  echo "cuda-nvcc: CXX is not set; install a C++ compiler (cxx-compiler) into the environment" >&2
  return 1
fi
_extforge_target=targets/x86_64-linux
if [ "${CONDA_BUILD:-0}" = 1 ]; then
  _extforge_roots="$PREFIX/$_extforge_target $BUILD_PREFIX/$_extforge_target"
  _extforge_place=$PREFIX$BUILD_PREFIX
else
  _extforge_roots=$CONDA_PREFIX/$_extforge_target
  _extforge_place=$CONDA_PREFIX
fi
# A blank in the prefix would split the flags for every tool that reads them as words.
case $_extforge_place in
  *' '*) _extforge_roots= ;;
esac
_extforge_include= _extforge_link=
# zsh does not split an unquoted variable; a loop over a command's output is split everywhere.
for _extforge_root in $(echo "$_extforge_roots"); do
  _extforge_include="$_extforge_include -I$_extforge_root/include -I$_extforge_root/include/cccl"
  _extforge_link="$_extforge_link -L$_extforge_root/lib -L$_extforge_root/lib/stubs"
done
export CFLAGS="${CFLAGS-}$_extforge_include" CPPFLAGS="${CPPFLAGS-}$_extforge_include"
export CXXFLAGS="${CXXFLAGS-}$_extforge_include" LDFLAGS="${LDFLAGS-}$_extforge_link"

export _EXTFORGE_OLD_NVCC_PREPEND_FLAGS="${NVCC_PREPEND_FLAGS-}"
export NVCC_PREPEND_FLAGS="${NVCC_PREPEND_FLAGS:+$NVCC_PREPEND_FLAGS }-ccbin=$CXX"
if [ "${CONDA_BUILD:-0}" = 1 ]; then
  _extforge_root=$PREFIX/$_extforge_target
  export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS-} -I$_extforge_root/include -L$_extforge_root/lib -L$_extforge_root/lib/stubs"
  CMAKE_ARGS="${CMAKE_ARGS-} -DCMAKE_FIND_ROOT_PATH=$PREFIX;$BUILD_PREFIX/${HOST-x86_64-conda-linux-gnu}/sysroot"
  export CMAKE_ARGS="$CMAKE_ARGS;$PREFIX/$_extforge_target;$BUILD_PREFIX/$_extforge_target"
  if [ -z "${CUDAARCHS-}" ]; then
    export CUDAARCHS="75-real;80-real;86-real;89-real;90a-real;100f-real;103f-real;120a-real;121f-real;121-virtual"
    export _EXTFORGE_SET_CUDAARCHS=1
  fi
  if [ -z "${NVCC_GENCODE-}" ]; then
    NVCC_GENCODE="-gencode=arch=compute_121,code=compute_121"
    for _extforge_arch in 121f 120a 103f 100f 90a 89 86 80 75; do
      NVCC_GENCODE="-gencode=arch=compute_$_extforge_arch,code=sm_$_extforge_arch $NVCC_GENCODE"
    done
    export NVCC_GENCODE _EXTFORGE_SET_NVCC_GENCODE=1
    unset _extforge_arch
  fi
else
  export NVCC_APPEND_FLAGS="${NVCC_APPEND_FLAGS-}"
fi
unset _extforge_target _extforge_roots _extforge_place _extforge_include _extforge_link _extforge_root
