# The CPU kernels, compiled once per instruction set.
#
# add_kernels(<target> [options...]) adds them to a target and compiles them with the further options. They include no
# header of torch and little of the standard library: an inline function compiled for a wide instruction set could be
# linked in place of the same function of a plain file, and stop older processors.

set(kernel_source "${CMAKE_CURRENT_LIST_DIR}/../csrc/cpu/fixed_fan_in_kernels.cpp")
cmake_path(NORMAL_PATH kernel_source)
set(capabilities baseline)
set(baseline_options "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND capabilities avx2 avx512 avx512_bf16)
  set(avx2_options -mavx2 -mfma -mf16c)
  set(avx512_options ${avx2_options} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set(avx512_bf16_options ${avx512_options} -mavx512bf16)
endif()

# Vectors are written out, so the compiler need not look for any: what it finds of its own in the scalar code of a batch of
# one is slower. It warns of a change of the ABI where vectors are passed, which inlined functions do not, and of
# uninitialised values in its own header of AVX-512.
set(kernel_options -O2 -fno-tree-vectorize -Wno-psabi -Wno-maybe-uninitialized)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(kernel_options -O2 -fno-vectorize -fno-slp-vectorize)
endif()

function(add_kernels target)
  foreach(capability IN LISTS capabilities)
    set(kernels "${target}_${capability}")
    add_library(${kernels} OBJECT "${kernel_source}")
    target_compile_definitions(${kernels} PRIVATE CAPABILITY=${capability})
    target_compile_options(${kernels} PRIVATE -Wall -Wextra ${kernel_options} ${${capability}_options} ${ARGN})
    set_target_properties(${kernels} PROPERTIES
      CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${target} PRIVATE ${kernels})
  endforeach()
endfunction()
