# add_simt_program(name sources...): two programs of kernels and their tests, without CUDA and without a GPU.
#   name_watched     every load and store of a kernel is checked and counted
#   name_sanitized   the same sources under AddressSanitizer and UndefinedBehaviorSanitizer
set(simt_dir "${CMAKE_CURRENT_LIST_DIR}")
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  message(FATAL_ERROR "simt: the harness is built with g++ 12 or later, got ${CMAKE_CXX_COMPILER_ID}")
endif()

# One access of the source is to stay one access: no merging, no splitting, no moving of it.
set(simt_watched_flags -O1 -finline-small-functions -fsanitize=thread -fno-tree-sra -fno-tree-loop-im
  -fno-store-merging -fno-tree-loop-distribute-patterns -fno-tree-vectorize)
set(simt_sanitized_flags -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined)

foreach(build watched sanitized)
  set(runtime fibers.cpp scheduler.cpp report.cpp memory_${build}.cpp)
  if(build STREQUAL "watched")
    list(APPEND runtime hooks.cpp program.cpp regions.cpp)
  endif()
  list(TRANSFORM runtime PREPEND "${simt_dir}/runtime/")
  add_library(simt_${build} STATIC ${runtime})
  target_include_directories(simt_${build} BEFORE PUBLIC "${simt_dir}/include")
  target_compile_features(simt_${build} PUBLIC cxx_std_17)
  target_compile_options(simt_${build} PUBLIC -g1 -Wall -Wextra)
endforeach()
target_compile_options(simt_watched PRIVATE -O2)
target_compile_options(simt_sanitized PRIVATE -O2 -DSIMT_SANITIZED)

function(add_simt_program name)
  foreach(build watched sanitized)
    add_executable(${name}_${build} ${ARGN})
    target_link_libraries(${name}_${build} PRIVATE simt_${build})
    target_compile_options(${name}_${build} PRIVATE ${simt_${build}_flags})
    add_test(NAME ${name}_${build} COMMAND ${name}_${build})
  endforeach()
  target_link_options(${name}_sanitized PRIVATE ${simt_sanitized_flags})
endfunction()
