#pragma once

#include <tuple>
#include <vector>

#include "levin/kernels/max_pool.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// Torch's indices (row * width + column in the image) from the pixels that windows have chosen.
Tensor max_pool_indices(const Tensor& chosen, int64_t image_width, const MaxPoolWindow& window);

/// The window as the operators take it: height and width of kernel, stride and padding.
std::vector<int64_t> flat_window(const MaxPoolWindow& window);
MaxPoolWindow window_of(at::IntArrayRef flat);

/// What forward and backward allocate: y and the pixels that its windows have chosen, and the gradient of x.
std::tuple<Tensor, Tensor> allocate_max_pool(const Tensor& x, const MaxPoolWindow& window);
Tensor allocate_max_pool_backward(const Tensor& dy, at::IntArrayRef sizes);

/// Adds the CUDA kernels of `levin::max_pool2d`; none in a build without CUDA.
void register_max_pool_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
