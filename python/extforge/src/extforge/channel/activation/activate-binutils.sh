# Names of the binary utilities, as conda-forge's binutils_linux-64 sets them.
for _extforge_pair in \
    ADDR2LINE=addr2line AR=ar AS=as LD=ld NM=nm OBJCOPY=objcopy OBJDUMP=objdump \
    RANLIB=ranlib READELF=readelf SIZE=size STRINGS=strings STRIP=strip; do
  export "${_extforge_pair%%=*}=x86_64-conda-linux-gnu-${_extforge_pair#*=}"
done
unset _extforge_pair
