# Run by CTest; see CMakeLists.txt beside it. The folder has a space in its name: commands must survive it.
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
unset(ENV{LD_LIBRARY_PATH})

function(run command)
  execute_process(COMMAND sh -c "${command}" WORKING_DIRECTORY "${WORK}" RESULT_VARIABLE _status OUTPUT_VARIABLE _output
    ERROR_VARIABLE _output)
  if(NOT _status EQUAL 0)
    message(FATAL_ERROR "new_app: \"${command}\" failed\n${_output}")
  endif()
  set(output "${_output}" PARENT_SCOPE)
endfunction()

run("'${PROGRAM}' new app 'my app'")
string(REGEX MATCHALL "\n  [^\n]+" _commands "${output}")
list(LENGTH _commands _count)
if(NOT _count EQUAL 3)
  message(FATAL_ERROR "new_app: three commands are expected in\n${output}")
endif()
foreach(_command ${_commands})
  string(STRIP "${_command}" _command)
  run("${_command}")
endforeach()
# The last one trains: the loss is near 0 at the end.
if(NOT output MATCHES "step 200  loss [0-9.e-]+")
  message(FATAL_ERROR "new_app: the program printed\n${output}")
endif()
message(STATUS "new_app: written, built and run")
