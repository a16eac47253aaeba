# What LibTorch's own TorchConfig.cmake gives to a project, without CUDA (the one of the Python packages needs its toolkit): for check_package.cmake.
get_filename_component(TORCH_INSTALL_PREFIX "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(TORCH_FOUND TRUE)
set(TORCH_INCLUDE_DIRS "${TORCH_INSTALL_PREFIX}/include" "${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include")
set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")
if(NOT TARGET torch)
  add_library(torch INTERFACE IMPORTED)
  set_target_properties(torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
    INTERFACE_LINK_LIBRARIES "${TORCH_INSTALL_PREFIX}/lib/libtorch_cpu.so")
endif()
set(TORCH_LIBRARIES torch "${TORCH_INSTALL_PREFIX}/lib/libc10.so")
