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
step("installing" ${CMAKE_COMMAND} --install "${BUILD}" --prefix "${_work}/prefix")
if(PROGRAM)
  step("running the installed program" "${_work}/prefix/bin/levin" --help)
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

# A LibTorch that is not there is one clear line, before anything is compiled.
execute_process(COMMAND ${_configure} -DLEVIN_TORCH=/nowhere RESULT_VARIABLE _status OUTPUT_QUIET ERROR_VARIABLE _errors)
if(_status EQUAL 0 OR NOT _errors MATCHES "no LibTorch in")
  message(FATAL_ERROR "package: LEVIN_TORCH=/nowhere was not refused\n${_errors}")
endif()
message(STATUS "package: installed, found, built and run")
