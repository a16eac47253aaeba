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

# One flag set for library and programs, so that all of them can share one precompiled header.
set(CMAKE_POSITION_INDEPENDENT_CODE OFF)
# Options are structs that name only the fields they change.
set(_flags -fPIC -Wall -Wextra -Wshadow -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND _flags -Wno-maybe-uninitialized)  # false alarms in std::variant and std::optional
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    list(APPEND _flags -Wno-dangling-reference)  # false alarms on references that outlive the handle they came from
  endif()
  if(LEVIN_UNITY)
    list(APPEND _flags -Wno-subobject-linkage)  # it takes a source that is included for a header
  endif()
endif()
if(LEVIN_WERROR)
  list(APPEND _flags -Werror)
endif()

find_program(LEVIN_CCACHE ccache)
if(LEVIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache asks for with precompiled headers. The base folder and the unhashed working folder let
  # one clone hit what another has compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" "CCACHE_NOHASHDIR=1" ${LEVIN_CCACHE})
  list(APPEND _flags -fpch-preprocess)
endif()
foreach(_flag ${_flags})
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:${_flag}>)
endforeach()

find_program(LEVIN_MOLD mold)
if(LEVIN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# levin_unity(<out> <source>...): the sources as few files that include some of one folder each, or as they are when
# LEVIN_UNITY is off. Every file pays about six seconds for what torch's headers leave to be instantiated, whatever is in
# it (docs/build.md), and sources of one folder share the rest. The paths in them are relative, so that clones share a
# compiler cache.
set(LEVIN_UNITY_BATCH 6 CACHE STRING "How many sources of a folder are compiled as one")
function(levin_unity out)
  if(NOT LEVIN_UNITY)
    set(${out} ${ARGN} PARENT_SCOPE)
    return()
  endif()
  set(_folders "")
  foreach(_source ${ARGN})
    cmake_path(RELATIVE_PATH _source BASE_DIRECTORY "${CMAKE_SOURCE_DIR}" OUTPUT_VARIABLE _path)
    cmake_path(GET _path PARENT_PATH _folder)
    string(MAKE_C_IDENTIFIER "${_folder}" _folder)
    list(APPEND _folders ${_folder})
    list(APPEND _of_${_folder} "${_path}")
  endforeach()
  list(REMOVE_DUPLICATES _folders)
  set(_units "")
  foreach(_folder ${_folders})
    list(LENGTH _of_${_folder} _count)
    math(EXPR _units_of_folder "(${_count} + ${LEVIN_UNITY_BATCH} - 1) / ${LEVIN_UNITY_BATCH}")
    math(EXPR _last "${_units_of_folder} - 1")
    foreach(_unit RANGE ${_last})
      # Spread evenly: seven sources are 4 + 3, not 6 + 1.
      math(EXPR _begin "${_count} * ${_unit} / ${_units_of_folder}")
      math(EXPR _length "${_count} * (${_unit} + 1) / ${_units_of_folder} - ${_begin}")
      list(SUBLIST _of_${_folder} ${_begin} ${_length} _part)
      list(TRANSFORM _part PREPEND "#include \"")
      list(TRANSFORM _part APPEND "\"\n")
      string(JOIN "" _text ${_part})
      set(_file "${CMAKE_BINARY_DIR}/unity/${_folder}_${_unit}.cpp")
      file(CONFIGURE OUTPUT "${_file}" CONTENT "${_text}" @ONLY)
      list(APPEND _units "${_file}")
    endforeach()
  endforeach()
  set(${out} ${_units} PARENT_SCOPE)
endfunction()
