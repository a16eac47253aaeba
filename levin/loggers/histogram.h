#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::detail {

/// Counts of values in TensorBoard's buckets, which grow by a tenth each on both sides of zero.
struct Histogram {
  double min = 0, max = 0, count = 0, sum = 0, sum_squares = 0;
  /// The upper limit of each bucket, from the empty one below the least value to that of the largest. Empty when no
  /// value lies in a bucket (all are nan or infinite).
  std::vector<double> limits;
  std::vector<double> counts;
};

/// Counted where the values are; only the counts are brought over.
Histogram make_histogram(const at::Tensor& values);

}  // namespace levin::detail
