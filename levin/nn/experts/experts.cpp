#include "levin/nn/experts/experts.h"

#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/nn/init.h>
#include <torch/types.h>

#include "levin/core/error.h"
#include "levin/kernels/activation.h"
#include "levin/kernels/played_device.h"
#include "levin/nn/experts/exchange.h"
#include "levin/nn/experts/router_loss.h"
#include "levin/nn/tensor/functions.h"

namespace levin::nn {
namespace {

/// In the dtype of the weight: under autocast the router is not cast down.
Tensor router_logits(const Tensor& x, const Tensor& router) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  return at::linear(x.to(router.scalar_type()), router).to(at::kFloat);
}

/// Products of groups are not torch's layers: autocast does not see them.
Tensor as_computed(const Tensor& x) {
  const auto dtype = kernels::detail::autocast_dtype(x);
  return dtype ? kernels::detail::autocast_to(x, *dtype) : x;
}

}  // namespace

void check_experts(const ExpertsOptions& options) {
  LEVIN_CHECK(options.count > 0 && options.dim > 0 && options.width > 0,
              "[experts] count, dim and width must be positive");
  LEVIN_CHECK(options.per_token > 0 && options.per_token <= options.count, "[experts] ", options.per_token,
              " experts per token of ", options.count, " in all");
  LEVIN_CHECK(std::isfinite(options.capacity_factor) && options.capacity_factor >= 0, "[experts] capacity_factor ",
              options.capacity_factor, " must be positive, or 0 for no limit");
}

ExpertsImpl::ExpertsImpl(const ExpertsOptions& asked) : options(asked) {
  check_experts(options);
  const auto make = [&](const char* name, at::IntArrayRef sizes, double std) {
    auto parameter = register_parameter(name, torch::empty(sizes));
    torch::nn::init::normal_(parameter, 0, std);
    return parameter;
  };
  router = make("router", {options.count, options.dim}, options.std);
  gate = make("gate", {options.count, options.width, options.dim}, options.std);
  up = make("up", {options.count, options.width, options.dim}, options.std);
  down = make("down", {options.count, options.dim, options.width}, options.down_std);
}

int64_t ExpertsImpl::split_dim(const std::string& parameter) const {
  if (parameter == "router") return -1;
  return parameter == "down" ? 2 : 1;
}

Tensor ExpertsImpl::compute(const Tensor& rows, GroupSizes& sizes) {
  // Rows of other ranks are among them: see ExpertSplit::parameters.
  const auto scale = ranks ? 1.0 / ranks->size() : 1.0;
  const auto product = [&](const Tensor& x, const Tensor& weight) {
    return grouped_linear(x, as_computed(weight), sizes, scale);
  };
  const auto opened = product(rows, gate), inner = product(rows, up);
  const auto hidden = options.activation == kernels::Activation::kSilu
                          ? kernels::gated_silu(opened, inner)
                          : kernels::activation(opened, options.activation) * inner;
  return product(hidden, down);
}

std::vector<std::vector<int64_t>> ExpertsImpl::counts_of_ranks(int64_t rows, DispatchPlan& plan) {
  const auto count = static_cast<size_t>(options.count);
  std::vector<std::vector<int64_t>> all;
  // Without values: every rank has as many rows for each expert as this one.
  if (plan.pair.is_meta()) return {static_cast<size_t>(ranks->size()), plan.sizes.counts(rows)};
  if (plan.has_gaps) {  // the host knows them, and so do the others
    for (const auto capacity : ranks->exchange("experts.capacity", rows / options.count))
      all.emplace_back(count, capacity);
    return all;
  }
  const auto gathered = ranks->all_gather(at::tensor(plan.sizes.counts(rows), at::kLong));
  const auto* numbers = gathered.const_data_ptr<int64_t>();
  for (int i = 0; i < ranks->size(); ++i, numbers += count) all.emplace_back(numbers, numbers + count);
  return all;
}

Tensor ExpertsImpl::compute_over_ranks(const Tensor& rows, DispatchPlan& plan) {
  const auto exchange = plan_exchange(counts_of_ranks(rows.size(0), plan), ranks->rank());
  const auto arrived = exchanged(rows, exchange.sent, exchange.received, ranks);
  const auto order = rows.is_meta() ? at::empty({static_cast<int64_t>(exchange.order.size())}, plan.pair.options())
                                    : at::tensor(exchange.order, at::kLong).to(rows.device());
  const auto inverse = inverse_of(order);
  GroupSizes sizes(exchange.rows, rows);
  const auto results = compute(permuted(arrived, order, inverse), sizes);
  return exchanged(permuted(results, inverse, order), exchange.received, exchange.sent, ranks);
}

Tensor ExpertsImpl::forward(const Tensor& x) {
  auto logits = router_logits(x.reshape({-1, options.dim}), router);
  auto input = as_computed(x);
  // Ranks with parts of the width route the same tokens alike. What is summed over them is the result, and in backward
  // the gradients of what goes into the products: tokens, and the weights of their results.
  if (takes_part) {
    const std::vector<int64_t> counts(static_cast<size_t>(width_ranks->size()), x.size(1));
    logits = gathered_from_ranks(logits.view({x.size(0), x.size(1), -1}), 1, counts, width_ranks).flatten(0, 1);
    input = gathered_for_region(input, 1, width_ranks);
  } else {
    input = copied_to_ranks(input, width_ranks);
  }
  const auto probabilities = at::softmax(logits, -1);
  auto [weights, chosen] = at::topk(probabilities, options.per_token, -1);
  if (auto* records = RouterRecords::current()) records->add({logits, probabilities, chosen, batch_ranks});
  if (options.normalized) weights = weights / weights.sum(-1, true);
  weights = copied_to_ranks(weights, width_ranks);

  const auto pairs = static_cast<double>(chosen.numel());
  const auto share = options.capacity_factor * pairs / static_cast<double>(options.count);
  auto plan = options.capacity_factor == 0
                  ? plan_all(chosen, options.count)
                  : plan_capacity(chosen, options.count, static_cast<int64_t>(std::max(1.0, std::ceil(share))));
  dropped = plan.dropped;
  const auto rows = rows_of_tokens(input.reshape({-1, options.dim}), plan);
  const auto results = ranks ? compute_over_ranks(rows, plan) : compute(rows, plan.sizes);
  const auto of_tokens = tokens_of_rows(results, plan);  // [N, k, D]
  const auto mixed = at::matmul(weights.to(of_tokens.scalar_type()).unsqueeze(1), of_tokens).view(input.sizes());
  return takes_part ? summed_part(mixed, 1, width_ranks) : summed_over_ranks(mixed, width_ranks);
}

}  // namespace levin::nn
