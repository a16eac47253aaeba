#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"

namespace levin::nn {

using at::Tensor;

/// all_to_all of rows (levin/distributed/collective.h); gradients go the way back.
Tensor exchanged(const Tensor& rows, std::vector<int64_t> sent, std::vector<int64_t> received,
                 const std::shared_ptr<Collective>& ranks);

/// What goes where when rows that are sorted by expert are exchanged.
struct ExchangePlan {
  /// Rows to each rank, and from each.
  std::vector<int64_t> sent, received;
  /// Rows come by rank, then by expert; this order makes it the other way round.
  std::vector<int64_t> order;
  /// Of each expert of this rank.
  std::vector<int64_t> rows;
};

/// `counts[r][e]`: the rows that rank r has for expert e. Rank r has the experts Share::of(experts, ranks, r).
ExchangePlan plan_exchange(const std::vector<std::vector<int64_t>>& counts, int64_t rank);

}  // namespace levin::nn
