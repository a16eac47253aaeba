# Compiler settings that every target of the project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# -O2: torch's headers make -O3 slow to compile, and the time of a step is in torch's kernels.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

message(STATUS "Compiler: ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")

# One flag set for library and programs, so that all of them can share one precompiled header.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
# Options are structs that name only the fields they change.
set(_flags -fPIC -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND _flags -Wno-maybe-uninitialized)  # false alarms in std::variant and std::optional
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND _flags -Wno-dangling-reference)  # false alarms on references that outlive the handle they came from
    list(APPEND _flags -Wno-overloaded-virtual)    # a unit's forward hides a virtual one on purpose
  endif()
  if(LEVIN_UNITY)
    list(APPEND _flags -Wno-subobject-linkage)  # it takes a source that is included for a header
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND _flags -Wno-overloaded-virtual)  # a unit's forward hides a virtual one on purpose
endif()
if(LEVIN_WERROR)
  list(APPEND _flags -Werror)
endif()

find_program(LEVIN_CCACHE ccache)
if(LEVIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/cmake/ccache" "${LEVIN_CCACHE}" "${CMAKE_SOURCE_DIR}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND _flags -fpch-preprocess)
  else()
    # As separate words: CMake takes a list of options for a set.
    string(APPEND CMAKE_CXX_FLAGS " -Xclang -fno-pch-timestamp")
  endif()
endif()
foreach(_flag ${_flags})
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${_flag}>)
endforeach()

# mold of Debian 12 (1.10) ends with an assertion on a library of this size on aarch64.
find_program(LEVIN_LLD ld.lld)
if(LEVIN_LLD)
  add_link_options(-fuse-ld=lld)
endif()

# levin_unity(<out> <target> <source>...): the sources as few files that include some each, or as they are when
# LEVIN_UNITY is off. Every file pays about six seconds for what torch's headers leave to be instantiated, whatever is in it,
# and sources share most of the rest (docs/build.md).
set(LEVIN_UNITY_LINES 3000 CACHE STRING "How many lines are compiled as one at most")
find_package(Python3 COMPONENTS Interpreter QUIET)
if(LEVIN_UNITY AND NOT Python3_FOUND)
  message(STATUS "LEVIN_UNITY is ignored: no python3")
  set(LEVIN_UNITY OFF)
endif()
function(levin_unity out target)
  if(NOT LEVIN_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  list(TRANSFORM ARGN REPLACE "^([^/])" "${CMAKE_CURRENT_SOURCE_DIR}/\\1" OUTPUT_VARIABLE _sources)
  # Which sources may come together depends on their text.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_sources} cmake/unity.py)
  execute_process(
    COMMAND "${Python3_EXECUTABLE}" "${CMAKE_SOURCE_DIR}/cmake/unity.py" "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/unity/${target}"
      ${LEVIN_UNITY_LINES} ${_sources}
    OUTPUT_VARIABLE _units COMMAND_ERROR_IS_FATAL ANY)
  set(${out} ${_units} PARENT_SCOPE)
endfunction()
