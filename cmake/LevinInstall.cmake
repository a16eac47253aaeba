# `cmake --install build --prefix DIR`: library, headers, program, and the package that find_package(Levin) reads.
#
# A prefix can be moved. LibTorch is at PREFIX/lib/levin/torch: a link to the one of the build. A package does not have the link;
# tools/fetch_torch makes it where the package was unpacked.
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/Levin")
set(_private "${CMAKE_INSTALL_LIBDIR}/levin")  # the program itself, libraries that a package brings, LibTorch
set(_built "${CMAKE_BINARY_DIR}/${_package}")

# libcudart of a CUDA build lies beside the torch package.
set_target_properties(levin PROPERTIES INSTALL_RPATH "$ORIGIN/levin;$ORIGIN/levin/torch/lib;$ORIGIN/levin/torch/../nvidia/cu13/lib")
install(TARGETS levin EXPORT LevinTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT LevinTargets NAMESPACE Levin:: DESTINATION ${_package})
if(TARGET levin_program)
  # bin/levin is a script: without LibTorch the program could say nothing.
  set_target_properties(levin_program PROPERTIES INSTALL_RPATH "$ORIGIN/..;$ORIGIN/torch/lib")
  install(TARGETS levin_program RUNTIME DESTINATION ${_private})
  file(RELATIVE_PATH LEVIN_PRIVATE_FROM_BIN "/${CMAKE_INSTALL_BINDIR}" "/${_private}")
  configure_file(cmake/package/levin.in "${CMAKE_BINARY_DIR}/package_files/levin" @ONLY)
  install(PROGRAMS "${CMAKE_BINARY_DIR}/package_files/levin" DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(PROGRAMS tools/fetch_torch DESTINATION ${_private})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/levin)

# Public headers, and no others.
if(Python3_FOUND)
  execute_process(COMMAND "${Python3_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/cmake/public_headers.py" "${CMAKE_SOURCE_DIR}"
    OUTPUT_VARIABLE _headers COMMAND_ERROR_IS_FATAL ANY)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_headers} cmake/public_headers.py)
else()
  message(STATUS "Private headers are installed too: no python3")
  file(GLOB_RECURSE _headers RELATIVE "${CMAKE_SOURCE_DIR}" levin/*.h)
endif()
foreach(_header ${_headers})
  get_filename_component(_folder "${_header}" DIRECTORY)
  install(FILES "${_header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${_folder}")
endforeach()

# The build folder has the layout of a prefix, and the same package: a project finds Levin in either by CMAKE_PREFIX_PATH.
configure_package_config_file(cmake/LevinConfig.cmake.in "${_built}/LevinConfig.cmake" INSTALL_DESTINATION ${_package}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${_built}/LevinConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
foreach(_file LevinFindTorch.cmake levin_precompile.h levin_instances.h)
  configure_file("cmake/${_file}" "${_built}/${_file}" COPYONLY)
endforeach()
export(EXPORT LevinTargets NAMESPACE Levin:: FILE "${_built}/LevinTargets.cmake")
install(FILES "${_built}/LevinConfig.cmake" "${_built}/LevinConfigVersion.cmake"
  cmake/LevinFindTorch.cmake cmake/levin_precompile.h cmake/levin_instances.h DESTINATION ${_package})

set(_link "${CMAKE_BINARY_DIR}/${_private}/torch")
file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/${_private}")
file(CREATE_LINK "${LEVIN_TORCH_DIR}" "${_link}" SYMBOLIC)
install(FILES "${_link}" DESTINATION ${_private})
