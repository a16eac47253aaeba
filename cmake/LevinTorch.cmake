# Finds LibTorch and declares the imported target levin_torch (exported as Levin::torch).
#
# The wheel's own TorchConfig insists on a CUDA toolkit, so the targets are declared here. Sources, in this order:
# LEVIN_TORCH (a LibTorch folder or a Python torch package), then what tools/setup put under build/deps.
set(LEVIN_TORCH_VERSION "2.11.0")

set(_torch "${LEVIN_TORCH}")
if(NOT _torch AND DEFINED ENV{LEVIN_TORCH})
  set(_torch "$ENV{LEVIN_TORCH}")
endif()
if(NOT _torch)
  set(_torch "${CMAKE_SOURCE_DIR}/build/deps/libtorch-${LEVIN_TORCH_VERSION}/torch")
endif()
if(NOT EXISTS "${_torch}/include/ATen/ATen.h")
  message(FATAL_ERROR "Levin: no LibTorch in ${_torch}. Run `make build` (it installs one), or set LEVIN_TORCH to a folder with include/ and lib/.")
endif()
file(READ "${_torch}/include/torch/headeronly/version.h" _version_header)
foreach(_part MAJOR MINOR PATCH)
  string(REGEX MATCH "TORCH_VERSION_${_part} ([0-9]+)" _ "${_version_header}")
  set(_torch_${_part} "${CMAKE_MATCH_1}")
endforeach()
set(_torch_found "${_torch_MAJOR}.${_torch_MINOR}.${_torch_PATCH}")
if(NOT _torch_found VERSION_EQUAL LEVIN_TORCH_VERSION)
  message(FATAL_ERROR "Levin: LibTorch ${_torch_found} in ${_torch}, but this Levin needs exactly ${LEVIN_TORCH_VERSION} (it uses classes of c10d that change between releases).")
endif()
message(STATUS "LibTorch ${_torch_found} in ${_torch}")
set(LEVIN_TORCH_DIR "${_torch}" CACHE INTERNAL "")

add_library(levin_torch INTERFACE)
set_target_properties(levin_torch PROPERTIES EXPORT_NAME torch)
target_include_directories(levin_torch SYSTEM INTERFACE
  $<BUILD_INTERFACE:${_torch}/include> $<BUILD_INTERFACE:${_torch}/include/torch/csrc/api/include>)
target_link_directories(levin_torch INTERFACE $<BUILD_INTERFACE:${_torch}/lib>)
target_link_options(levin_torch INTERFACE $<BUILD_INTERFACE:-Wl,-rpath,${_torch}/lib> $<BUILD_INTERFACE:-Wl,-rpath-link,${_torch}/lib>)
target_link_libraries(levin_torch INTERFACE torch_cpu c10)
target_compile_definitions(levin_torch INTERFACE USE_C10D_GLOO USE_DISTRIBUTED)

# ---- CUDA. ON links libtorch_cuda; COMPILE proves on a machine without a GPU that the sources still compile.
find_path(LEVIN_CUDA_INCLUDE cuda_runtime.h
  HINTS "${_torch}/../nvidia/cu13/include" "$ENV{CUDA_HOME}/include" "$ENV{CUDA_PATH}/include" /usr/local/cuda/include)
find_library(LEVIN_CUDART cudart NAMES cudart libcudart.so.13
  HINTS "${_torch}/../nvidia/cu13/lib" "$ENV{CUDA_HOME}/lib64" /usr/local/cuda/lib64)
set(_cuda "${LEVIN_CUDA}")
if(_cuda STREQUAL "AUTO")
  set(_cuda OFF)
  if(EXISTS "${_torch}/lib/libtorch_cuda.so" AND LEVIN_CUDA_INCLUDE AND LEVIN_CUDART AND EXISTS /dev/nvidiactl)
    set(_cuda ON)
  endif()
endif()
if(NOT _cuda STREQUAL "OFF" AND NOT LEVIN_CUDA_INCLUDE)
  message(FATAL_ERROR "Levin: LEVIN_CUDA=${_cuda}, but no cuda_runtime.h was found (set CUDA_HOME).")
endif()
set(LEVIN_CUDA_MODE "${_cuda}" CACHE INTERNAL "")
message(STATUS "CUDA: ${LEVIN_CUDA_MODE} (asked: ${LEVIN_CUDA})")
if(LEVIN_CUDA_MODE STREQUAL "ON")
  # --no-as-needed: the CUDA kernels register themselves when the library is loaded; nothing names a symbol of it.
  target_link_libraries(levin_torch INTERFACE -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed ${LEVIN_CUDART})
  target_compile_definitions(levin_torch INTERFACE USE_C10D_NCCL)
endif()
