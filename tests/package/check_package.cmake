# Run by CTest; see CMakeLists.txt beside it.
set(_work "${BUILD}/package")
file(REMOVE_RECURSE "${_work}")

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE _status OUTPUT_VARIABLE _output ERROR_VARIABLE _output)
  if(NOT _status EQUAL 0)
    message(FATAL_ERROR "package: ${what} failed\n${_output}")
  endif()
  set(output "${_output}" PARENT_SCOPE)
endfunction()

# The run path alone must find every library.
unset(ENV{LD_LIBRARY_PATH})
step("installing" ${CMAKE_COMMAND} --install "${BUILD}" --prefix "${_work}/installed")
# What is installed can be moved.
file(RENAME "${_work}/installed" "${_work}/prefix")
if(PROGRAM)
  step("running the installed program" "${_work}/prefix/bin/levin" --help)
  step("asking for the prefix" "${_work}/prefix/bin/levin" --cmake-prefix)
  if(NOT output STREQUAL "${_work}/prefix\n")
    message(FATAL_ERROR "package: `levin --cmake-prefix` printed \"${output}\" instead of \"${_work}/prefix\"")
  endif()
endif()
if(EXISTS "${_work}/prefix/include/levin/pch.h" OR NOT EXISTS "${_work}/prefix/include/levin/cli/train_main.h")
  message(FATAL_ERROR "package: the installed headers are not the public ones")
endif()

set(_configure ${CMAKE_COMMAND} -S "${SOURCE}" -B "${_work}/build" -G "${GENERATOR}" -DCMAKE_CXX_COMPILER=${COMPILER}
  "-DCMAKE_PREFIX_PATH=${_work}/prefix")
step("configuring the project" ${_configure})
step("building the project" ${CMAKE_COMMAND} --build "${_work}/build")
step("running the project" "${_work}/build/uses_levin")
if(NOT output STREQUAL "sum 6\n")
  message(FATAL_ERROR "package: the project printed \"${output}\" instead of \"sum 6\"")
endif()
step("installing the project" ${CMAKE_COMMAND} --install "${_work}/build" --prefix "${_work}/user")
step("running the installed project" "${_work}/user/bin/uses_levin")

# A project that has LibTorch, here as a folder beside the one that Levin was built with: the same libraries at another place.
file(READ_SYMLINK "${_work}/prefix/lib/levin/torch" _built_torch)
set(_libtorch "${_work}/libtorch")
file(MAKE_DIRECTORY "${_libtorch}/share/cmake/Torch")
configure_file("${SOURCE}/../TorchConfig.cmake" "${_libtorch}/share/cmake/Torch/TorchConfig.cmake" COPYONLY)
file(CREATE_LINK "${_built_torch}/include" "${_libtorch}/include" SYMBOLIC)
file(CREATE_LINK "${_built_torch}/lib" "${_libtorch}/lib" SYMBOLIC)
set(_configure_own ${CMAKE_COMMAND} -S "${SOURCE}/../torch_project" -G "${GENERATOR}" -DCMAKE_CXX_COMPILER=${COMPILER})
step("configuring the project with LibTorch" ${_configure_own} -B "${_work}/own" "-DCMAKE_PREFIX_PATH=${_libtorch}\;${_work}/prefix")
step("building the project with LibTorch" ${CMAKE_COMMAND} --build "${_work}/own")
step("running the project with LibTorch" "${_work}/own/own_torch" --devices 2)
if(NOT output STREQUAL "trained on 2\n")
  message(FATAL_ERROR "package: the project with LibTorch printed \"${output}\"")
endif()
# Levin comes before LibTorch, although the project names it last, and LibTorch is that of the project.
step("reading the libraries of the project with LibTorch" readelf -d "${_work}/own/own_torch")
if(NOT output MATCHES "NEEDED[^\n]*liblevin\\.so.*NEEDED[^\n]*libtorch_cpu\\.so" OR NOT output MATCHES "${_libtorch}/lib")
  message(FATAL_ERROR "package: the libraries of the project with LibTorch are in another order, or not its own\n${output}")
endif()

# refused(<folder> <regex> <option>...): configuring that project fails with the line.
function(refused folder regex)
  execute_process(COMMAND ${_configure_own} -B "${_work}/${folder}" ${ARGN} RESULT_VARIABLE _status OUTPUT_QUIET ERROR_VARIABLE _errors)
  string(REGEX REPLACE "[ \n]+" " " _errors "${_errors}")
  if(_status EQUAL 0 OR NOT _errors MATCHES "${regex}")
    message(FATAL_ERROR "package: \"${regex}\" was not said for ${ARGN}\n${_errors}")
  endif()
endfunction()
# Two LibTorch: Levin was told of one, and find_package(Torch) finds the other.
file(MAKE_DIRECTORY "${_work}/other/lib" "${_work}/other/share/cmake/Torch")
file(CREATE_LINK "${_libtorch}/include" "${_work}/other/include" SYMBOLIC)
configure_file("${SOURCE}/../TorchConfig.cmake" "${_work}/other/share/cmake/Torch/TorchConfig.cmake" COPYONLY)
file(WRITE "${_work}/other/lib/libtorch_cpu.so" "")
refused(two "a program can have one" -DLEVIN_FIRST=ON "-DLEVIN_TORCH=${_built_torch}" "-DTorch_DIR=${_work}/other/share/cmake/Torch"
  "-DCMAKE_PREFIX_PATH=${_work}/prefix")
# A LibTorch of another version, found before Levin or not.
file(REMOVE "${_work}/other/include")
file(WRITE "${_work}/other/include/ATen/ATen.h" "")
file(WRITE "${_work}/other/include/torch/headeronly/version.h"
  "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 6\n#define TORCH_VERSION_PATCH 0\n")
foreach(_first ON OFF)
  refused(old_${_first} "Levin: LibTorch 2.6.0 is in .*/other., but this Levin needs exactly" -DLEVIN_FIRST=${_first}
    "-DCMAKE_PREFIX_PATH=${_work}/other\;${_work}/prefix")
endforeach()

# A LibTorch that is not there is one clear line, before anything is compiled.
execute_process(COMMAND ${_configure} -DLEVIN_TORCH=/nowhere RESULT_VARIABLE _status OUTPUT_QUIET ERROR_VARIABLE _errors)
if(_status EQUAL 0 OR NOT _errors MATCHES "no LibTorch in")
  message(FATAL_ERROR "package: LEVIN_TORCH=/nowhere was not refused\n${_errors}")
endif()

# A package has no LibTorch: the program says so, and takes one that is named.
if(PROGRAM)
  file(READ_SYMLINK "${_work}/prefix/lib/levin/torch" _torch)
  file(REMOVE "${_work}/prefix/lib/levin/torch")
  execute_process(COMMAND "${_work}/prefix/bin/levin" --version RESULT_VARIABLE _status OUTPUT_QUIET ERROR_VARIABLE _errors)
  if(NOT _status EQUAL 1 OR NOT _errors MATCHES "^levin: no LibTorch [^\n]*fetch_torch[^\n]*\n$")
    message(FATAL_ERROR "package: without LibTorch the program ended with ${_status} and said\n${_errors}")
  endif()
  step("naming LibTorch" ${CMAKE_COMMAND} -E env "LEVIN_TORCH=${_torch}" "${_work}/prefix/bin/levin" --version)
  step("linking LibTorch" "${_work}/prefix/lib/levin/fetch_torch" "${_torch}")
  step("running with the linked LibTorch" "${_work}/prefix/bin/levin" --version)
endif()
message(STATUS "package: installed, found, built and run")
