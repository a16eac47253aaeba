#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::testing {

/// The largest absolute difference of two tensors of one shape, computed in float64; NaN when an element of one is NaN.
double max_difference(const at::Tensor& a, const at::Tensor& b);
/// Of all pairs of two lists. Lists of different lengths, and empty ones, are an error.
double max_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);
/// Whether two tensors have the same dtype, shape and bytes.
bool same_bytes(const at::Tensor& a, const at::Tensor& b);

}  // namespace levin::testing
