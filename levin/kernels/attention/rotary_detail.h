#pragma once

#include <tuple>

#include <ATen/core/Tensor.h>

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using at::Tensor;

/// Queries, keys and values [B, T, H, D] in one new tensor [B, T, 3, H, D], by one kernel. Not differentiable.
Tensor pack_qkv(const Tensor& q, const Tensor& k, const Tensor& v);
/// The same and the sums of its columns, [3 * H * D] in `dtype`, in the same pass. Deterministic.
std::tuple<Tensor, Tensor> pack_qkv_and_sums(const Tensor& q, const Tensor& k, const Tensor& v, at::ScalarType dtype);

/// The operators by those of ATen, on any device.
Tensor rotary_by_aten(const Tensor& qkv, const Tensor& angles, bool inverse);
Tensor pack_qkv_by_aten(const Tensor& q, const Tensor& k, const Tensor& v);

/// Adds the kernels of CUDA to the operators.
void register_rotary_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
