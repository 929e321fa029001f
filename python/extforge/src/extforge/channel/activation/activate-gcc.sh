# The environment of conda-forge's gcc_linux-64: in a package build headers and libraries come from $PREFIX,
# in a user's environment from $CONDA_PREFIX.
export CC=x86_64-conda-linux-gnu-cc GCC=x86_64-conda-linux-gnu-gcc CPP=x86_64-conda-linux-gnu-cpp
export GCC_AR=x86_64-conda-linux-gnu-gcc-ar GCC_NM=x86_64-conda-linux-gnu-gcc-nm
export GCC_RANLIB=x86_64-conda-linux-gnu-gcc-ranlib CC_FOR_BUILD=x86_64-conda-linux-gnu-cc
export HOST=x86_64-conda-linux-gnu BUILD=x86_64-conda-linux-gnu
export CONDA_TOOLCHAIN_HOST=x86_64-conda-linux-gnu CONDA_TOOLCHAIN_BUILD=x86_64-conda-linux-gnu
export host_alias=x86_64-conda-linux-gnu build_alias=x86_64-conda-linux-gnu
export CONDA_BUILD_CROSS_COMPILATION=${CONDA_BUILD_CROSS_COMPILATION-}

_extforge_flags="-march=nocona -mtune=haswell -ftree-vectorize -fPIC -fstack-protector-strong -fno-plt -O2 -ffunction-sections -pipe"
if [ "${CONDA_BUILD:-0}" = 1 ]; then
  _extforge_root=$PREFIX
  _extforge_search="$PREFIX;$BUILD_PREFIX/x86_64-conda-linux-gnu/sysroot"
  _extforge_source="/usr/local/src/conda/${PKG_NAME-package}-${PKG_VERSION-0}"
  _extforge_maps="-fdebug-prefix-map=${SRC_DIR-.}=$_extforge_source -fdebug-prefix-map=$PREFIX=/usr/local/src/conda-prefix"
else
  _extforge_root=$CONDA_PREFIX
  _extforge_search="$CONDA_PREFIX;$CONDA_PREFIX/x86_64-conda-linux-gnu/sysroot"
  _extforge_maps=
fi
_extforge_isystem="-isystem $_extforge_root/include"
# A blank in the prefix would split the flags for every tool that reads them as words.
case $_extforge_root in
  *' '*) _extforge_isystem= _extforge_maps= _extforge_link= ;;
  *) _extforge_link="-Wl,-rpath,$_extforge_root/lib -Wl,-rpath-link,$_extforge_root/lib -L$_extforge_root/lib" ;;
esac
export CFLAGS="$_extforge_flags $_extforge_isystem $_extforge_maps"
export CPPFLAGS="-DNDEBUG -D_FORTIFY_SOURCE=2 -O2 $_extforge_isystem"
export LDFLAGS="-Wl,-O2 -Wl,--sort-common -Wl,--as-needed -Wl,-z,relro -Wl,-z,now -Wl,--disable-new-dtags -Wl,--gc-sections -Wl,--allow-shlib-undefined $_extforge_link"
export CMAKE_PREFIX_PATH=$_extforge_root
export CONDA_BUILD_SYSROOT=${BUILD_PREFIX-$CONDA_PREFIX}/x86_64-conda-linux-gnu/sysroot
_extforge_args="-DCMAKE_BUILD_TYPE=Release -DCMAKE_FIND_ROOT_PATH_MODE_PROGRAM=NEVER -DCMAKE_FIND_ROOT_PATH_MODE_LIBRARY=ONLY -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POLICY_DEFAULT_CMP0094=NEW"
case $_extforge_root in
  *' '*) export CMAKE_ARGS=$_extforge_args ;;
  *) export CMAKE_ARGS="$_extforge_args -DCMAKE_FIND_ROOT_PATH=$_extforge_search -DCMAKE_INSTALL_PREFIX=$_extforge_root" ;;
esac
unset _extforge_flags _extforge_root _extforge_search _extforge_source _extforge_maps _extforge_isystem _extforge_link _extforge_args
