#include "levin/nn/experts/dispatch.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

namespace levin::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x[index[i]]; zeros where the index is -1.
Tensor picked(const Tensor& x, const Tensor& index, bool has_gaps) {
  if (!has_gaps) return x.index_select(0, index);
  if (x.size(0) == 0) return at::zeros({index.size(0), x.size(1)}, x.options());
  return x.index_select(0, index.clamp_min(0)).masked_fill_(index.lt(0).unsqueeze(1), 0);
}

struct RowsOfTokens : torch::autograd::Function<RowsOfTokens> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& pair, const Tensor& row,
                        int64_t per_token, bool has_gaps) {
    context->save_for_backward({row});
    context->saved_data["per_token"] = per_token;
    context->saved_data["has_gaps"] = has_gaps;
    // -1 stays -1.
    return picked(x, per_token == 1 ? pair : pair.div(per_token, "floor"), has_gaps);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    Tensor of_x;
    if (grads[0].defined()) {
      const auto row = context->get_saved_variables()[0];
      const auto per_token = context->saved_data["per_token"].toInt();
      of_x = picked(grads[0], row, context->saved_data["has_gaps"].toBool());
      if (per_token > 1) of_x = of_x.view({-1, per_token, of_x.size(1)}).sum(1);
    }
    return {of_x, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

/// picked(x, there), whose gradient is picked(grad, back).
struct Picked : torch::autograd::Function<Picked> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& there, const Tensor& back,
                        bool has_gaps) {
    context->save_for_backward({back});
    context->saved_data["has_gaps"] = has_gaps;
    return picked(x, there, has_gaps);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    Tensor of_x;
    if (grads[0].defined())
      of_x = picked(grads[0], context->get_saved_variables()[0], context->saved_data["has_gaps"].toBool());
    return {of_x, Tensor(), Tensor(), Tensor()};
  }
};

/// Pairs sorted by expert, the experts of the sorted pairs, and where each expert ends.
struct SortedPairs {
  Tensor order, expert, ends;

  SortedPairs(const Tensor& chosen, int64_t experts) {
    std::tie(expert, order) = at::sort(chosen.reshape({-1}), /*stable=*/true, 0, /*descending=*/false);
    ends = chosen.is_meta() ? at::empty({experts}, chosen.options().dtype(at::kInt))
                            : at::searchsorted(expert, at::arange(experts, chosen.options()), /*out_int32=*/true,
                                               /*right=*/true);
  }
};

}  // namespace

Tensor inverse_of(const Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
}

DispatchPlan plan_all(const Tensor& chosen, int64_t experts) {
  const SortedPairs sorted(chosen, experts);
  return {sorted.order, inverse_of(sorted.order), chosen.size(1), false, GroupSizes(sorted.ends)};
}

DispatchPlan plan_capacity(const Tensor& chosen, int64_t experts, int64_t capacity) {
  const SortedPairs sorted(chosen, experts);
  const auto none = at::zeros({1}, sorted.ends.options());
  const auto begins = at::cat({none, sorted.ends.slice(0, 0, experts - 1)}).to(at::kLong);
  const auto place = at::arange(sorted.order.size(0), chosen.options()) - begins.index_select(0, sorted.expert);
  const auto kept = place.lt(capacity);
  const auto row = sorted.expert * capacity + place;
  const auto rows = experts * capacity;
  // One more row takes what is dropped.
  auto pair = at::full({rows + 1}, -1, chosen.options());
  pair.scatter_(0, at::where(kept, row, rows), sorted.order);
  auto row_of = at::empty_like(sorted.order).scatter_(0, sorted.order, at::where(kept, row, -1));
  return {pair.slice(0, 0, rows),
          row_of,
          chosen.size(1),
          true,
          GroupSizes(std::vector<int64_t>(static_cast<size_t>(experts), capacity), chosen),
          kept.logical_not().sum()};
}

Tensor rows_of_tokens(const Tensor& x, const DispatchPlan& plan) {
  return RowsOfTokens::apply(x, plan.pair, plan.row, plan.per_token, plan.has_gaps);
}

Tensor tokens_of_rows(const Tensor& y, const DispatchPlan& plan) {
  return Picked::apply(y, plan.row, plan.pair, plan.has_gaps).view({-1, plan.per_token, y.size(1)});
}

Tensor permuted(const Tensor& x, const Tensor& order, const Tensor& inverse) {
  return Picked::apply(x, order, inverse, false);
}

}  // namespace levin::nn
