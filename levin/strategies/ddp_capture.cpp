#include "levin/strategies/ddp_capture.h"

#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/devices/graphs.h"

namespace levin::detail {

void load_pass_kernels(const std::vector<GradientBucket>& buckets) {
  const at::NoGradGuard no_grad;
  for (const auto& bucket : buckets) {
    const std::vector<Tensor> to{at::empty({5}, bucket.memory.options())};
    const std::vector<Tensor> from{at::ones({5}, bucket.memory.options())};
    at::_foreach_copy_(to, from);
    at::_foreach_mul_(to, 0.5);
    at::_foreach_div_(to, 2);
  }
}

CapturedPass::CapturedPass(Collective& group, CapturedPassPlan plan)
    : group_(group), plan_(std::move(plan)), bucket_of_(plan_.params.size()), came_(plan_.params.size(), 0) {
  for (size_t i = 0; i < plan_.buckets.size(); ++i) {
    size_t pending = 0;
    for (const auto param : plan_.buckets[i].params) {
      bucket_of_[param] = i;
      if (plan_.uses[param] > 0) ++pending;
    }
    pending_.push_back(pending);
  }
  sent_.resize(plan_.buckets.size());
}

void CapturedPass::ready(size_t param) {
  if (++came_[param] > plan_.uses[param])
    refuse_capture(
        fmt::format("parameter \"{}\" gets its gradient more often than expected in one backward", plan_.names[param]));
  if (came_[param] < plan_.uses[param]) return;
  --pending_[bucket_of_[param]];
  while (next_ < pending_.size() && pending_[next_] == 0) start(next_++);
}

void CapturedPass::start(size_t index) {
  const at::NoGradGuard no_grad;
  const auto& bucket = plan_.buckets[index];
  const int ranks = group_.size();
  std::vector<Tensor> to, from, in_place;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const auto& grad = plan_.params[bucket.params[i]].grad();
    const auto& view = bucket.views[i];
    if (!grad.defined()) {
      view.zero_();
    } else if (grad.is_alias_of(view)) {
      in_place.push_back(view);
    } else if (grad.strides() == view.strides()) {
      to.push_back(view);
      from.push_back(grad);
    } else if (plan_.travels_as) {
      view.copy_(grad);
    } else {
      // The kernel of the reducer: another one might have to be loaded.
      auto out = view;
      at::mul_out(out, grad, at::native::wrapped_scalar_tensor(1.0 / ranks));
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
  from.clear();
  // Now, so that what backward makes next can have their memory.
  if (plan_.gradients_are_views && !keeps_gradients())
    for (size_t i = 0; i < bucket.params.size(); ++i)
      if (auto& grad = plan_.params[bucket.params[i]].mutable_grad(); grad.defined()) grad = bucket.views[i];
  auto& sent = sent_[index];
  sent.tensor = bucket.memory;
  if (plan_.travels_as) {
    sent.tensor = bucket.memory.to(*plan_.travels_as).div_(ranks);
  } else if (ranks > 1) {
    // A quotient and a product with 1 / ranks differ in the last bit. The reducer has these two.
    if (!to.empty()) at::_foreach_mul_(to, 1.0 / ranks);
    if (!in_place.empty()) at::_foreach_div_(in_place, ranks);
  }
  group_.run("ddp", [&](c10d::ProcessGroup& all) {
    std::vector<Tensor> tensors{sent.tensor.is_complex() ? at::view_as_real(sent.tensor) : sent.tensor};
    sent.work = all.allreduce(tensors);
  });
}

/// Eager steps name parameters that got no gradient, where that is an Error.
void CapturedPass::check_missing() const {
  for (size_t i = 0; i < came_.size(); ++i) {
    if (came_[i] == plan_.uses[i]) continue;
    if (!plan_.allows_unused || came_[i] > 0)
      refuse_capture(fmt::format("parameter \"{}\" got no gradient", plan_.names[i]));
    if (group_.size() > 1 && !plan_.params[i].grad().defined())
      refuse_capture(
          fmt::format("parameter \"{}\" got no gradient on this rank, and ranks exchange on the host whether others "
                      "use it (not with static_graph)",
                      plan_.names[i]));
  }
}

void CapturedPass::finish() {
  check_missing();
  while (next_ < pending_.size()) start(next_++);
  for (size_t i = 0; i < sent_.size(); ++i) end(i);
}

void CapturedPass::end(size_t index) {
  const at::NoGradGuard no_grad;
  auto& bucket = plan_.buckets[index];
  group_.run("ddp", [&](c10d::ProcessGroup&) { sent_[index].work->wait(); });
  if (plan_.travels_as) bucket.memory.copy_(sent_[index].tensor);
  sent_[index] = {};
  std::vector<Tensor> to, from;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const auto param = bucket.params[i];
    const auto& view = bucket.views[i];
    auto& grad = plan_.params[param].mutable_grad();
    if (!grad.defined() && !(plan_.used_somewhere && (*plan_.used_somewhere)[param])) continue;
    if (!grad.defined()) {
      grad = plan_.gradients_are_views ? view : view.clone();
    } else if (!grad.is_alias_of(view)) {
      to.push_back(grad);
      from.push_back(view);
    }
  }
  if (!to.empty()) at::_foreach_copy_(to, from);
}

}  // namespace levin::detail
