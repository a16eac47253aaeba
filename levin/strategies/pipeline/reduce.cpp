#include "levin/strategies/pipeline/reduce.h"

#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/strategies/module_states.h"

namespace levin::detail {

StageReduce::StageReduce(StageModule& module, Collective& all, Collective& pipeline, Collective& copies)
    : module_(module), all_(all), copies_(copies) {
  // Every rank makes the same groups in the same order, also those that it is not in.
  std::map<std::vector<int>, States> by_ranks;
  for (const auto& state : module_.cut().states) {
    const auto ranks = module_.holders(state);
    if (ranks.size() > 1 && state.is_parameter) by_ranks[ranks].push_back(&state);
    if (module_.holds(state) && state.is_parameter) held_.push_back(&state);
  }
  for (auto& [ranks, states] : by_ranks) {
    auto group = static_cast<int>(ranks.size()) == pipeline.size()
                     ? std::shared_ptr<Collective>(&pipeline, [](auto*) {})
                     : split_group(pipeline, {ranks}, fmt::format("stages_{}", fmt::join(ranks, "_")));
    if (group) shared_.emplace_back(std::move(group), std::move(states));
  }
}

void StageReduce::begin() {
  if (!std::exchange(summed_, false)) return;
  const at::NoGradGuard no_grad;
  for (const auto& [group, shared] : shared_) {
    if (group->rank() == 0) continue;
    for (const auto* state : shared)
      if (auto grad = state->tensor.grad(); grad.defined()) grad.zero_();
  }
}

void StageReduce::run() {
  const at::NoGradGuard no_grad;
  // Which parameters have a gradient anywhere: ranks that do not have one, or did not use it, join in with zeros. What
  // nobody has used stays without.
  const auto& states = module_.cut().states;
  auto used = at::zeros({static_cast<int64_t>(states.size())}, at::kInt);
  auto* flags = used.mutable_data_ptr<int>();
  for (size_t i = 0; i < states.size(); ++i) flags[i] = states[i].tensor.grad().defined() ? 1 : 0;
  if (all_.size() > 1) all_.all_reduce(used, ReduceOp::kMax);
  for (size_t i = 0; i < states.size(); ++i) {
    auto tensor = states[i].tensor;
    if (flags[i] && !tensor.grad().defined()) tensor.mutable_grad() = at::zeros_like(tensor);
  }
  for (auto& [group, shared] : shared_) reduce(*group, shared, /*mean=*/false);
  summed_ = true;
  if (copies_.size() > 1) reduce(copies_, held_, /*mean=*/true);
}

void StageReduce::reduce(Collective& group, const States& states, bool mean) const {
  constexpr int64_t kBucket = int64_t{25} << 20;
  std::vector<Tensor> bucket;
  int64_t bytes = 0;
  const auto flush = [&] {
    if (bucket.empty()) return;
    std::vector<Tensor> flat;
    for (const auto& grad : bucket) flat.push_back(grad.reshape({-1}));
    auto sum = bucket.size() == 1 ? flat.front().clone() : at::cat(flat);
    group.all_reduce(sum, mean ? ReduceOp::kMean : ReduceOp::kSum);
    int64_t at = 0;
    for (auto& grad : bucket) {
      grad.copy_(sum.narrow(0, at, grad.numel()).view_as(grad));
      at += grad.numel();
    }
    bucket.clear();
    bytes = 0;
  };
  for (const auto* state : states) {
    const auto& grad = state->tensor.grad();
    if (!grad.defined()) continue;
    if (!bucket.empty() && (bytes > kBucket || bucket.front().scalar_type() != grad.scalar_type())) flush();
    bucket.push_back(grad);
    bytes += static_cast<int64_t>(grad.nbytes());
  }
  flush();
}

void StageReduce::share_values() {
  for (auto& [group, shared] : shared_)
    for (const auto* state : shared) {
      auto value = state->tensor.detach();
      group->broadcast(value);
    }
  if (copies_.size() == 1) return;
  std::vector<NamedState> states;
  for (const auto& state : module_.cut().states)
    if (module_.holds(state)) states.push_back({state.name, state.tensor});
  broadcast_states(copies_, states);
}

}  // namespace levin::detail
