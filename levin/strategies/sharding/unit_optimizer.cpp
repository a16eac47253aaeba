#include "levin/strategies/sharding/unit_optimizer.h"

#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"

namespace levin::detail {

// ---- StepThread

StepThread::~StepThread() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StepThread::run(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  }
  changed_.notify_all();
}

void StepThread::join() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_.empty() && !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StepThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (ends_) return;
    const auto work = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    if (failure && !failure_) {
      failure_ = failure;
      waiting_.clear();
    }
    changed_.notify_all();
  }
}

// ---- UnitOptimizer

UnitOptimizer::UnitOptimizer(Optimizer inner, std::string strategy, bool in_backward)
    : inner_(std::move(inner)), strategy_(std::move(strategy)), in_backward_(in_backward) {}

UnitOptimizer::~UnitOptimizer() = default;

void UnitOptimizer::add_groups(const std::vector<std::unique_ptr<ShardGroup>>& groups) {
  for (const auto& group : groups)
    for (size_t i = 0; i < group->params().size(); ++i)
      places_[group->params()[i].param.unsafeGetTensorImpl()] = {group.get(), i};
  own_.clear();
  for (const auto& param : inner_.all_params()) own_.insert(param.unsafeGetTensorImpl());
}

void UnitOptimizer::group_is_ready(ShardGroup& group, std::function<void()> arrived) {
  if (!in_backward_) return;
  group.show_shards();
  if (!group.options().offload) {
    group.give_grads();
    step_group(group);
    return;
  }
  thread_.run([this, &group, arrived = std::move(arrived)] {
    const at::NoGradGuard no_grad;
    if (arrived) arrived();
    group.settle_host();
    group.give_grads();
    step_group(group);
  });
}

void UnitOptimizer::step_group(ShardGroup& group) {
  std::vector<Tensor> params, copies;
  for (size_t i = 0; i < group.params().size(); ++i) {
    const auto& param = group.params()[i].param;
    if (!param.grad().defined() || !own_.contains(param.unsafeGetTensorImpl())) continue;
    params.push_back(param);
    if (auto copy = group.host_copy(i); copy.defined()) copies.push_back(std::move(copy));
  }
  if (params.empty()) return;
  const std::lock_guard lock(stepping_);
  LEVIN_CHECK(inner_.impl()->step_params(params, nullptr, copies), "[", strategy_, "] ", inner_.name(),
              " cannot step some of its parameters, which optimizer_in_backward needs; use one of levin::optim");
  if (!copies.empty()) group.mark_copied();
  for (auto& param : params) param.mutable_grad().reset();
}

void UnitOptimizer::step() {
  thread_.join();
  if (!step_all(nullptr)) inner_.step();
}

bool UnitOptimizer::step_scaled(const GradScale& scale) {
  thread_.join();
  return step_all(&scale) || inner_.impl()->step_scaled(scale);
}

/// Parameters with copies are stepped apart from those without. False when the optimizer cannot, and nothing was done.
bool UnitOptimizer::step_all(const GradScale* scale) {
  std::vector<Tensor> plain, copied, copies;
  std::vector<ShardGroup*> renewed;
  for (size_t g = 0; g < inner_.num_groups(); ++g)
    for (const auto& param : inner_.params(g)) {
      if (!param.grad().defined()) continue;
      const auto place = places_.find(param.unsafeGetTensorImpl());
      auto copy = place == places_.end() ? Tensor() : place->second.first->host_copy(place->second.second);
      if (copy.defined()) {
        copied.push_back(param);
        copies.push_back(std::move(copy));
        if (renewed.empty() || renewed.back() != place->second.first) renewed.push_back(place->second.first);
      } else {
        plain.push_back(param);
      }
    }
  if (copied.empty() && !in_backward_) return false;  // nothing that step() would not do as well
  if (!copied.empty()) {
    if (!inner_.impl()->step_params(copied, scale, copies)) return false;
    for (auto* group : renewed) group->mark_copied();
  }
  if (!plain.empty() && !inner_.impl()->step_params(plain, scale)) return false;
  return true;
}

}  // namespace levin::detail
