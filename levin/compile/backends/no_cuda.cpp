// The null twin of launch_cuda.cpp, for builds without CUDA.
#include "levin/compile/backends/backend.h"
#include "levin/core/error.h"

namespace levin::compile {

std::shared_ptr<GroupKernel> make_cuda_kernel(const Group&, c10::Device) {
  levin::detail::fail("[compile] this Levin was built without CUDA (configure with LEVIN_CUDA=ON)");
}

std::string why_no_cuda_kernels() {
  return "this Levin was built without CUDA (configure with LEVIN_CUDA=ON)";
}

}  // namespace levin::compile
