# libtorch_sparse_ops_cuda.so: the kernels, compiled once per type of values for every architecture, and their host functions.
#
# nvcc is CMAKE_CUDA_COMPILER or CUDACXX or on PATH. The CUDA runtime is linked dynamically, so that the process has one, and
# comes from where CMake finds the toolkit's libraries: in a conda build the host prefix, and nowhere else.

cmake_path(REPLACE_FILENAME torch_library libtorch_cuda.so OUTPUT_VARIABLE torch_cuda_library)
if(NOT EXISTS "${torch_cuda_library}")
  torch_refuse("TORCH_SPARSE_OPS_CUDA=ON needs a torch with CUDA, but ${torch_cuda_library} does not exist. "
    "Install a CUDA build of torch, or leave the CUDA library out with -DTORCH_SPARSE_OPS_CUDA=OFF.")
endif()

# Machine code for these, PTX for what comes after the newest. Stated before the language is enabled: otherwise CUDAARCHS,
# which conda's nvcc sets, would decide.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 89-real 90-real 100-real 120)
endif()
if(NOT DEFINED CMAKE_CUDA_HOST_COMPILER AND NOT "$ENV{NVCC_PREPEND_FLAGS}" MATCHES "-ccbin")
  set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}")
endif()
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

set(launcher "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/report_resources.py" ${CMAKE_CUDA_COMPILER_LAUNCHER})
set(value_float32 float)
set(value_float64 double)
set(value_float16 __half)
set(value_bfloat16 __nv_bfloat16)

# In a conda build nvcc comes from the build prefix, what is linked from the host prefix.
function(check_cuda_prefixes)
  if("$ENV{CONDA_BUILD}" STREQUAL "1")
    check_prefix("${CMAKE_CUDA_COMPILER}" "$ENV{BUILD_PREFIX}" BUILD_PREFIX nvcc
      "Is compiler(\"cuda\") among the build requirements?")
  endif()
  check_host_prefix("${CUDA_CUDART}" "the CUDA runtime" "Is cuda-cudart-dev among the host requirements?")
  check_host_prefix("${torch_cuda_library}" torch "Is pytorch among the host requirements?")
endfunction()

function(add_cuda_library target)
  check_cuda_prefixes()
  list(JOIN CMAKE_CUDA_ARCHITECTURES "," architectures)
  foreach(row IN ITEMS
      "nvcc         ${CMAKE_CUDA_COMPILER} (${CMAKE_CUDA_COMPILER_VERSION})"
      "CUDA runtime ${CUDA_CUDART}"
      "GPUs         ${architectures}")
    message(STATUS "${row}")
  endforeach()
  add_library(${target} SHARED csrc/cuda/fixed_fan_in.cpp)
  target_compile_definitions(${target} PRIVATE USE_CUDA TORCH_SPARSE_OPS_CUDA_ARCHITECTURES="${architectures}")
  target_link_libraries(${target} PRIVATE "${torch_library}" "${torch_cuda_library}" CUDA::cudart)
  foreach(name IN ITEMS float32 float64 float16 bfloat16)
    set(kernels "${target}_${name}")
    add_library(${kernels} OBJECT csrc/cuda/fixed_fan_in.cu)
    target_compile_definitions(${kernels} PRIVATE VALUE=${value_${name}} TABLE=cuda_fixed_fan_in_${name})
    list(JOIN common_options "$<COMMA>" host_options)
    target_compile_options(${kernels} PRIVATE "-Xcompiler=-Wall,-Wextra,${host_options}" -Xptxas=-v --compress-mode=size)
    set_target_properties(${kernels} PROPERTIES
      CUDA_COMPILER_LAUNCHER "${launcher}"
      CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${target} PRIVATE ${kernels})
  endforeach()
  finish_library(${target})
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX
    # torch of a wheel, and its CUDA runtime; both of a conda environment
    INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../nvidia/cu${CUDAToolkit_VERSION_MAJOR}/lib;$ORIGIN/../../..")
endfunction()
