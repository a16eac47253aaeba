#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// By operators of ATen, on any device.
std::tuple<Tensor, Tensor> greedy_by_aten(const Tensor& logits, const Tensor& scores);

/// Adds the kernel of CUDA to the operator.
void register_greedy_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
