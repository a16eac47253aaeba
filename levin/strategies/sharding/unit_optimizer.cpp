#include "levin/strategies/sharding/unit_optimizer.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"

namespace levin::detail {

namespace {

/// Gives parameters gradients of their own dtype while an optimizer steps that counts on it: its state, made from a
/// narrower gradient, would be narrow for good.
class WideGradients {
 public:
  explicit WideGradients(const Optimizer& optimizer) {
    if (const auto traits = optimizer.traits(); traits && traits->narrow_gradients) return;
    for (const auto& param : optimizer.all_params())
      if (param.grad().defined() && param.grad().scalar_type() != param.scalar_type()) {
        narrow_.emplace_back(param, param.grad());
        param.mutable_grad() = param.grad().to(param.scalar_type());
      }
  }
  ~WideGradients() {
    for (const auto& [param, gradient] : narrow_)
      if (param.grad().defined()) param.mutable_grad() = gradient;
  }
  WideGradients(const WideGradients&) = delete;
  WideGradients& operator=(const WideGradients&) = delete;

 private:
  std::vector<std::pair<Tensor, Tensor>> narrow_;
};

}  // namespace

// ---- UnitOptimizer

UnitOptimizer::UnitOptimizer(Optimizer inner, std::string strategy, bool in_backward)
    : ForwardingOptimizer(std::move(inner)), strategy_(std::move(strategy)), in_backward_(in_backward) {}

UnitOptimizer::~UnitOptimizer() = default;

void UnitOptimizer::add_groups(const std::vector<std::unique_ptr<ShardGroup>>& groups) {
  for (const auto& group : groups)
    for (size_t i = 0; i < group->params().size(); ++i)
      places_[group->params()[i].param.unsafeGetTensorImpl()] = {group.get(), i};
  own_.clear();
  for (const auto& param : inner().all_params()) own_.insert(param.unsafeGetTensorImpl());
}

void UnitOptimizer::group_is_ready(const std::vector<std::shared_ptr<UnitOptimizer>>& optimizers, ShardGroup& group,
                                   std::function<void()> arrived) {
  std::vector<UnitOptimizer*> owners;
  for (const auto& optimizer : optimizers)
    if (optimizer->in_backward_ && optimizer->owns_any(group)) owners.push_back(optimizer.get());
  if (owners.empty()) return;
  group.show_shards();
  // One thread, so that the optimizers of a group do not meet. All are joined at the end of backward.
  auto& thread = owners.front()->thread_;
  if (group.updates_in_place()) {  // it has been stepped
    if (group.state() != ShardGroup::State::kGathered) return;
    thread.run([&group, arrived = std::move(arrived)] {
      if (arrived) arrived();
      group.note_values();
    });
    return;
  }
  if (!group.options().offload) {
    group.give_grads();
    for (auto* owner : owners) owner->step_group(group);
    return;
  }
  thread.run([owners, &group, arrived = std::move(arrived)] {
    const at::NoGradGuard no_grad;
    if (arrived) arrived();
    group.settle_host();
    group.give_grads();
    for (auto* owner : owners) owner->step_group(group);
  });
}

bool UnitOptimizer::is_stateless() const {
  const auto traits = inner().traits();
  return traits && traits->elementwise && traits->slots && traits->slots({1}, at::kFloat).empty();
}

bool UnitOptimizer::owns_all(const ShardGroup& group) const {
  return std::ranges::all_of(group.params(), [&](const auto& param) {
    return !param.param.requires_grad() || own_.contains(param.param.unsafeGetTensorImpl());
  });
}

bool UnitOptimizer::owns_any(const ShardGroup& group) const {
  return std::ranges::any_of(group.params(),
                             [&](const auto& param) { return own_.contains(param.param.unsafeGetTensorImpl()); });
}

void UnitOptimizer::step_group(ShardGroup& group) {
  std::vector<Tensor> params, copies;
  for (size_t i = 0; i < group.params().size(); ++i) {
    const auto& param = group.params()[i].param;
    if (!param.grad().defined() || !own_.contains(param.unsafeGetTensorImpl())) continue;
    if (param.grad().layout() != at::kStrided) param.mutable_grad() = param.grad().to_dense();
    params.push_back(param);
    if (auto copy = group.host_copy_to_write(i); copy.defined()) copies.push_back(std::move(copy));
  }
  if (params.empty()) return;
  const std::lock_guard lock(stepping_);
  LEVIN_CHECK(
      since_step_.insert(&group).second, "[", strategy_, "] ",
      group.name().empty() ? "the root" : "\"" + group.name() + "\"",
      " got gradients of a second backward before step(), and optimizer_in_backward has stepped it already; call "
      "step() after every backward, or put all micro-batches but the last under fabric.no_backward_sync");
  LEVIN_CHECK(inner().impl()->step_params(params, nullptr, copies), "[", strategy_, "] ", inner().name(),
              " cannot step some of its parameters, which optimizer_in_backward needs; use one of levin::optim");
  stepped_.push_back(group.name());
  for (auto& param : params) param.mutable_grad().reset();
}

void UnitOptimizer::step() {
  thread_.join();
  since_step_.clear();
  if (step_all(nullptr)) return;
  const WideGradients wide(inner());
  inner().step();
}

Tensor UnitOptimizer::step_with(const std::function<Tensor()>& closure) {
  const auto traits = inner().traits();
  if (traits && (traits->elementwise || traits->tensor_sums)) return OptimizerImpl::step_with(closure);
  // It may evaluate the closure more than once. (No rank has a shard of a parameter here.)
  thread_.join();
  return inner().step(closure);
}

bool UnitOptimizer::step_scaled(const GradScale& scale) {
  thread_.join();
  since_step_.clear();
  return step_all(&scale) || inner().impl()->step_scaled(scale);
}

/// Parameters with copies are stepped apart from those without. False when the optimizer cannot, and nothing was done.
bool UnitOptimizer::step_all(const GradScale* scale) {
  std::vector<Tensor> plain, copied, copies;
  for (size_t g = 0; g < num_groups(); ++g)
    for (const auto& param : params(g)) {
      if (!param.grad().defined()) continue;
      const auto place = places_.find(param.unsafeGetTensorImpl());
      auto copy = place == places_.end() ? Tensor() : place->second.first->host_copy_to_write(place->second.second);
      if (copy.defined()) {
        copied.push_back(param);
        copies.push_back(std::move(copy));
      } else {
        plain.push_back(param);
      }
    }
  if (copied.empty() && !in_backward_) return false;  // nothing that step() would not do as well
  const auto traits = inner().traits();
  if (traits && traits->tensor_sums) {
    // One sum over the ranks, as on a rank whose shards are all without copies.
    copied.insert(copied.end(), plain.begin(), plain.end());
    copies.resize(copied.size());
    plain.clear();
  }
  auto& impl = *inner().impl();
  if (!copied.empty() && !impl.step_params(copied, scale, copies)) return false;
  if (!plain.empty() && !impl.step_params(plain, scale)) return false;
  return true;
}

}  // namespace levin::detail
