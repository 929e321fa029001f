# What the libraries of the package have in common.

# File names in messages are relative to the sources or to torch's headers, so no path of this machine stays behind.
set(common_options $<$<BOOL:${TORCH_SPARSE_OPS_WARNINGS_AS_ERRORS}>:-Werror>
  "-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/=" "-ffile-prefix-map=${torch_include}/=")
if(TORCH_SPARSE_OPS_SANITIZE)
  list(APPEND common_options -fsanitize=address,undefined -fno-sanitize-recover=undefined)
endif()

function(finish_library target)
  target_include_directories(${target} SYSTEM PRIVATE "${torch_include}")
  target_compile_definitions(${target} PRIVATE TORCH_TARGET_VERSION=${torch_target_version})
  target_compile_options(${target} PRIVATE -Wall -Wextra ${common_options}
    $<$<CONFIG:Release>:-Os>)                          # what is fast are the kernels
  # Equal sources give equal bytes: no build id. Undefined symbols stop the link rather than the import.
  target_link_options(${target} PRIVATE LINKER:--as-needed LINKER:-z,defs LINKER:-z,noexecstack LINKER:-z,relro
    LINKER:-z,now LINKER:--build-id=none $<$<CONFIG:Release>:LINKER:--strip-all>
    $<$<BOOL:${TORCH_SPARSE_OPS_SANITIZE}>:-fsanitize=address,undefined>)
  set_target_properties(${target} PROPERTIES
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    LIBRARY_OUTPUT_DIRECTORY "${package_dir}"
    BUILD_WITH_INSTALL_RPATH ON)                       # what is built is what is installed
  # scikit-build-core takes the component "library" and adds the Python files itself, so that an editable install can
  # point at the sources.
  install(TARGETS ${target} LIBRARY DESTINATION torch_sparse_ops COMPONENT library)
endfunction()
