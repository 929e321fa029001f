# Sorted after activate-gcc, whose flags it extends for C++.
export CXX=x86_64-conda-linux-gnu-c++ GXX=x86_64-conda-linux-gnu-g++ CXX_FOR_BUILD=x86_64-conda-linux-gnu-c++
export CXXFLAGS="-fvisibility-inlines-hidden ${CFLAGS-}"
