# Finding LibTorch, for Levin's own build and for a project that uses the installed Levin.
# The wheel's TorchConfig insists on a CUDA toolkit, so the target is declared here instead.

# levin_check_torch(<folder> <version>): stops with one line unless that LibTorch is in the folder.
function(levin_check_torch folder version hint)
  if(NOT EXISTS "${folder}/include/ATen/ATen.h" OR NOT EXISTS "${folder}/lib/libtorch_cpu.so")
    message(FATAL_ERROR "Levin: no LibTorch in \"${folder}\" (include/ATen/ATen.h and lib/libtorch_cpu.so are looked for). ${hint}")
  endif()
  set(_file "${folder}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${_file}")
    set(_file "${folder}/include/torch/csrc/api/include/torch/version.h")  # before 2.9
  endif()
  file(READ "${_file}" _header)
  set(_found "")
  foreach(_part MAJOR MINOR PATCH)
    string(REGEX MATCH "TORCH_VERSION_${_part} ([0-9]+)" _ "${_header}")
    list(APPEND _found "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN _found "." _found)
  if(NOT _found VERSION_EQUAL version)
    message(FATAL_ERROR "Levin: LibTorch ${_found} is in \"${folder}\", but this Levin needs exactly ${version} (it uses classes of c10d that change between releases). ${hint}")
  endif()
endfunction()

# levin_project_torch(<out>): the LibTorch of the project that asks for Levin, or "".
function(levin_project_torch out)
  if(TORCH_INSTALL_PREFIX)  # find_package(Torch) has run
    get_filename_component(_found "${TORCH_INSTALL_PREFIX}" ABSOLUTE)
    set(${out} "${_found}" PARENT_SCOPE)
    return()
  endif()
  set(_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  string(REPLACE ":" ";" _prefixes "${_prefixes}")
  set(_folders "")
  if(Torch_DIR)
    set(_folders "${Torch_DIR}/../../..")
  endif()
  foreach(_prefix ${CMAKE_PREFIX_PATH} ${_prefixes})
    list(APPEND _folders "${_prefix}" "${_prefix}/torch" "${_prefix}/../..")  # the last: torch.utils.cmake_prefix_path
  endforeach()
  foreach(_folder ${_folders})
    if(EXISTS "${_folder}/share/cmake/Torch/TorchConfig.cmake")
      get_filename_component(_found "${_folder}" ABSOLUTE)
      set(${out} "${_found}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# levin_check_one_torch(<folder>): stops with one line where find_package(Torch) has found another LibTorch than that of Levin.
function(levin_check_one_torch folder)
  if(NOT TORCH_INSTALL_PREFIX)
    return()
  endif()
  file(REAL_PATH "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so" _theirs)
  file(REAL_PATH "${folder}/lib/libtorch_cpu.so" _ours)
  if(NOT _theirs STREQUAL _ours)
    message(FATAL_ERROR "Levin: find_package(Torch) found the LibTorch in \"${TORCH_INSTALL_PREFIX}\", and Levin uses the one in \"${folder}\"; a program can have one. Call find_package(Torch) before find_package(Levin), or set LEVIN_TORCH to the first.")
  endif()
endfunction()

# levin_declare_torch(<folder> <cuda: ON or OFF>): the imported target Levin::torch.
function(levin_declare_torch folder cuda)
  if(TARGET Levin::torch)
    return()
  endif()
  set(_libraries "${folder}/lib/libtorch_cpu.so" "${folder}/lib/libc10.so")
  if(cuda)
    find_library(LEVIN_CUDART NAMES cudart libcudart.so.13
      HINTS "${folder}/../nvidia/cu13/lib" "$ENV{CUDA_HOME}/lib64" /usr/local/cuda/lib64)
    # --no-as-needed: the CUDA kernels register themselves when the library is loaded; nothing names a symbol of it.
    list(APPEND _libraries -Wl,--no-as-needed "${folder}/lib/libtorch_cuda.so" "${folder}/lib/libc10_cuda.so"
      -Wl,--as-needed "${LEVIN_CUDART}")
  endif()
  # The Pythons' wheels put CUDA's own libraries beside torch; libtorch finds them by its own run path, the linker by this.
  file(GLOB _beside "${folder}/../nvidia/*/lib")
  set(_options "-Wl,-rpath-link,${folder}/lib")
  foreach(_path ${_beside})
    list(APPEND _options "-Wl,-rpath-link,${_path}")
  endforeach()
  add_library(Levin::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(Levin::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${folder}/include;${folder}/include/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED"
    INTERFACE_LINK_LIBRARIES "${_libraries}"
    INTERFACE_LINK_OPTIONS "${_options}")
endfunction()
