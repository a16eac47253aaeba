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
levin_require(ZLIB zlib1g-dev)
levin_require(yaml-cpp libyaml-cpp-dev)
set(LEVIN_YAML yaml-cpp)
if(TARGET yaml-cpp::yaml-cpp)  # its name since 0.8
  set(LEVIN_YAML yaml-cpp::yaml-cpp)
endif()

find_package(CLI11 QUIET)
if(NOT CLI11_FOUND)
  message(STATUS "The program `levin` is left out: no CLI11 (libcli11-dev)")
endif()
