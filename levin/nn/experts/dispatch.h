#pragma once

#include <ATen/core/Tensor.h>

#include "levin/nn/experts/grouped.h"

namespace levin::nn {

/// Which row of the experts each pair of a token and one of its experts is. Rows are sorted by expert.
struct DispatchPlan {
  /// [M]: the pair (token * per_token + choice) of each row; -1 for a row that nobody uses.
  Tensor pair;
  /// [N * per_token]: the row of each pair; -1 for one that is dropped.
  Tensor row;
  int64_t per_token = 1;
  /// Whether there are any -1.
  bool has_gaps = false;
  /// Rows of each expert.
  GroupSizes sizes;
  /// Pairs that were dropped, on the device; undefined where none can be.
  Tensor dropped = {};
};

/// chosen [N, per_token]: every pair has a row.
DispatchPlan plan_all(const Tensor& chosen, int64_t experts);
/// Every expert has `capacity` rows, for the first tokens that chose it. The host waits for nothing.
DispatchPlan plan_capacity(const Tensor& chosen, int64_t experts, int64_t capacity);

/// Tokens x [N, D] to the rows of their experts [M, D]. Sums of gradients are in a fixed order.
Tensor rows_of_tokens(const Tensor& x, const DispatchPlan& plan);
/// Results of rows [M, D] to [N, per_token, D]; zeros where a pair was dropped.
Tensor tokens_of_rows(const Tensor& y, const DispatchPlan& plan);
/// Rows in another order, and gradients back: result[i] = x[order[i]], x[i] = result[inverse[i]].
Tensor permuted(const Tensor& x, const Tensor& order, const Tensor& inverse);
/// The inverse of a permutation.
Tensor inverse_of(const Tensor& order);

}  // namespace levin::nn
