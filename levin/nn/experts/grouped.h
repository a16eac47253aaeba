#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::nn {

using at::Tensor;

/// How many rows each group has, one group behind the other: on the device, on the host, or both.
class GroupSizes {
 public:
  /// Known on the host.
  GroupSizes(std::vector<int64_t> counts, const Tensor& like);
  /// int32 [groups]: where each group ends.
  explicit GroupSizes(Tensor ends) : ends_(std::move(ends)) {}

  /// The host waits for the device the first time, unless it knows. Meta tensors have no numbers: `rows` are spread
  /// evenly.
  const std::vector<int64_t>& counts(int64_t rows);
  const Tensor& ends() const { return ends_; }
  int64_t groups() const { return ends_.size(0); }

 private:
  std::vector<int64_t> counts_;
  Tensor ends_;
};

/// Rows x [M, in] of groups, each times the weight of its own group, [G, out, in]: [M, out]. bfloat16 on CUDA is one
/// grouped product, which needs no numbers on the host; everything else is one product for each group.
/// Gradients of the weight are multiplied by `weight_grad_scale`.
Tensor grouped_linear(const Tensor& x, const Tensor& weight, GroupSizes& sizes, double weight_grad_scale = 1);

/// Whether grouped_linear takes the grouped product.
bool is_one_product(const Tensor& x, const Tensor& weight);
/// For tests: false makes all of it a product for each group.
bool& allow_one_product();

}  // namespace levin::nn
