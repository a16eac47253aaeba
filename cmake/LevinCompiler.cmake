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
add_compile_options(-fPIC -Wall -Wextra -Wshadow)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-maybe-uninitialized)  # false alarms in std::variant and std::optional
endif()
if(LEVIN_WERROR)
  add_compile_options(-Werror)
endif()

find_program(LEVIN_CCACHE ccache)
if(LEVIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache asks for with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime" ${LEVIN_CCACHE})
  add_compile_options(-fpch-preprocess)
endif()
find_program(LEVIN_MOLD mold)
if(LEVIN_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
