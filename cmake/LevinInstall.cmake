# `cmake --install build --prefix DIR`: library, headers, program, and the package that find_package(Levin) reads.
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/Levin")

install(TARGETS levin EXPORT LevinTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET levin_program)
  install(TARGETS levin_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set_target_properties(levin_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()
install(EXPORT LevinTargets NAMESPACE Levin:: DESTINATION ${_package})
install(DIRECTORY levin DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h"
  PATTERN "pch.h" EXCLUDE PATTERN "testing" EXCLUDE PATTERN "cli" EXCLUDE PATTERN "program" EXCLUDE)
install(FILES levin/cli/train_main.h levin/cli/train_program.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/levin/cli)
# The build folder has the layout of a prefix, and the same package: a project finds Levin in either by CMAKE_PREFIX_PATH.
set(_built "${CMAKE_BINARY_DIR}/${_package}")
configure_package_config_file(cmake/LevinConfig.cmake.in "${_built}/LevinConfig.cmake" INSTALL_DESTINATION ${_package}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${_built}/LevinConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
foreach(_file LevinFindTorch.cmake levin_precompile.h)
  configure_file("cmake/${_file}" "${_built}/${_file}" COPYONLY)
endforeach()
export(EXPORT LevinTargets NAMESPACE Levin:: FILE "${_built}/LevinTargets.cmake")
# An earlier version wrote them here, where they would be found first.
file(REMOVE "${CMAKE_BINARY_DIR}/LevinConfig.cmake" "${CMAKE_BINARY_DIR}/LevinConfigVersion.cmake")
install(FILES "${_built}/LevinConfig.cmake" "${_built}/LevinConfigVersion.cmake"
  cmake/LevinFindTorch.cmake cmake/levin_precompile.h DESTINATION ${_package})
