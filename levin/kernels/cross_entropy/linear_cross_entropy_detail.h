#pragma once

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// Adds the kernel of CUDA to the operator. In linear_cross_entropy_cuda.cpp.
void register_linear_cross_entropy_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
