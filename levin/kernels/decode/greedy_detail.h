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
void advance_by_aten(const Tensor& logits, const Tensor& ids, const Tensor& positions, const Tensor& found,
                     const Tensor& turn);

/// Adds the kernels of CUDA to the operators.
void register_greedy_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
