# Libraries of the distribution. Each is used by few files of ours; a missing optional one drops its component with a line.
# CMake's own module of Threads first: some packages' configurations look for it.
find_package(Threads REQUIRED)

function(levin_require package debian)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "Levin: ${package} was not found. On Debian and Ubuntu: apt-get install ${debian} (or run `make build`, which does).")
  endif()
endfunction()
levin_require(nlohmann_json nlohmann-json3-dev)
set(Boost_NO_BOOST_CMAKE ON)  # headers are all that is used
levin_require(Boost libboost-dev)
levin_require(ZLIB zlib1g-dev)
levin_require(PNG libpng-dev)
levin_require(JPEG libjpeg-dev)
levin_require(yaml-cpp libyaml-cpp-dev)
set(LEVIN_YAML yaml-cpp)
if(TARGET yaml-cpp::yaml-cpp)  # its name since 0.8
  set(LEVIN_YAML yaml-cpp::yaml-cpp)
endif()

# levin_optional(<variable> <header> <library> <debian> <what is missing without>): the target of a library, or nothing. Found by file: LMDB has no package
# for CMake, and HDF5's own brings its compiler wrappers into the build.
function(levin_optional variable header library debian)
  find_path(${variable}_INCLUDE NAMES ${header} PATH_SUFFIXES hdf5/serial)
  find_library(${variable}_LIBRARY NAMES ${library} ${library}_serial PATH_SUFFIXES hdf5/serial)
  if(${variable}_INCLUDE AND ${variable}_LIBRARY)
    add_library(levin_${library} INTERFACE)
    target_include_directories(levin_${library} SYSTEM INTERFACE "${${variable}_INCLUDE}")
    target_link_libraries(levin_${library} INTERFACE "${${variable}_LIBRARY}")
    set(${variable} $<BUILD_INTERFACE:levin_${library}> PARENT_SCOPE)
  else()
    message(STATUS "${debian} is not there: ${ARGN}")
    set(${variable} "" PARENT_SCOPE)
  endif()
endfunction()
levin_optional(LEVIN_LMDB lmdb.h lmdb liblmdb-dev "LMDB files cannot be read or written")
levin_optional(LEVIN_HDF5 hdf5.h hdf5 libhdf5-dev "HDF5 files cannot be read or written")
levin_optional(LEVIN_DEFLATE libdeflate.h deflate libdeflate-dev "PNG images are read more slowly")
levin_optional(LEVIN_ZSTD zstd.h zstd libzstd-dev ".tar.zst files cannot be read")
levin_optional(LEVIN_WEBP webp/decode.h webp libwebp-dev "WebP images cannot be read")
