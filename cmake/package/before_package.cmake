# Run by CPack on the folder that becomes a package.
cmake_policy(SET CMP0009 NEW)
file(GLOB_RECURSE _script "${CPACK_TEMPORARY_DIRECTORY}/fetch_torch")
get_filename_component(_private "${_script}" DIRECTORY)
file(REMOVE "${_private}/torch")  # the link to the LibTorch of this machine
if(CPACK_GENERATOR STREQUAL "TGZ")
  get_filename_component(_prefix "${_private}/../.." ABSOLUTE)
  execute_process(COMMAND "${CPACK_LEVIN_PYTHON}" "${CPACK_LEVIN_SCRIPTS}/bundle.py" "${_prefix}" "${CPACK_LEVIN_TORCH}"
    COMMAND_ERROR_IS_FATAL ANY)
endif()
