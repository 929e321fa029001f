# Where torch is: asked of Python_EXECUTABLE on every configure, without importing torch and without the cache.
#
# Sets torch_package (site-packages/torch), torch_library (libtorch_cpu.so), torch_include and torch_version (of the
# headers). The library that Python's torch loads decides, and the headers are those beside it: a wheel keeps both inside
# the package; conda keeps both under the prefix, with links to the libraries and an incomplete include in the package.

function(torch_refuse)
  list(JOIN ARGN "" sentence)
  message(FATAL_ERROR "torch-sparse-ops: ${sentence}\nPython asked: ${Python_EXECUTABLE}\n"
    "Another one is chosen with -DPython_EXECUTABLE=/path/to/python.")
endfunction()

function(torch_ask_python)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import importlib.util
spec = importlib.util.find_spec('torch')
print(spec.submodule_search_locations[0] if spec and spec.origin else '')"
    WORKING_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}"
    OUTPUT_VARIABLE package OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE code ERROR_VARIABLE reason)
  if(NOT code EQUAL 0)
    torch_refuse("this Python could not be asked where torch is (exit ${code}): ${reason}")
  endif()
  if(NOT package)
    torch_refuse("this Python has no torch. Install torch ${TORCH_MINIMUM} or newer for it.")
  endif()
  set(torch_package "${package}" PARENT_SCOPE)
endfunction()

function(torch_find_files)
  set(link "${torch_package}/lib/libtorch_cpu.so")
  file(REAL_PATH "${link}" library)
  cmake_path(GET library PARENT_PATH root)
  cmake_path(GET root PARENT_PATH root)
  set(header "${root}/include/torch/csrc/stable/library.h")
  foreach(file IN ITEMS "${library}" "${header}")
    if(NOT EXISTS "${file}")
      torch_refuse("the torch in ${torch_package} is not complete: ${file} does not exist.")
    endif()
  endforeach()
  set(torch_library "${library}" PARENT_SCOPE)
  set(torch_include "${root}/include" PARENT_SCOPE)
endfunction()

function(torch_read_version)
  set(header "${torch_include}/torch/headeronly/version.h")
  file(STRINGS "${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  list(JOIN numbers "." version)
  if(version VERSION_LESS TORCH_MINIMUM)
    torch_refuse("torch ${version} in ${torch_include} is too old: ${TORCH_MINIMUM} or newer is needed.")
  endif()
  set(torch_version "${version}" PARENT_SCOPE)
  # torch replaced in place: configure again before the next build.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${header}")
endfunction()

# In a conda package build everything comes from a prefix, and no link may lead out of it.
function(check_prefix path prefix variable name question)
  file(REAL_PATH "${path}" real)
  file(REAL_PATH "${prefix}" inner)
  cmake_path(IS_PREFIX inner "${real}" NORMALIZE inside)
  if(NOT inside)
    torch_refuse("in a conda build (CONDA_BUILD=1) ${name} must come from ${variable}=${prefix}, but ${real} was found. "
      "${question}")
  endif()
endfunction()

function(check_host_prefix path name question)
  if("$ENV{CONDA_BUILD}" STREQUAL "1")
    check_prefix("${path}" "$ENV{PREFIX}" PREFIX "${name}" "${question}")
  endif()
endfunction()

function(torch_check_prefix)
  foreach(path IN ITEMS "${torch_package}" "${torch_include}" "${torch_library}")
    check_host_prefix("${path}" torch "Is pytorch among the host requirements, and is Python_EXECUTABLE that of PREFIX?")
  endforeach()
endfunction()
