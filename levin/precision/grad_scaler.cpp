#include <map>

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>

#include "levin/core/error.h"
#include "levin/devices/graphs.h"
#include "levin/precision/precision.h"

namespace levin {

// Where one optimizer stands in the current step.
struct GradScaler::PerOptimizer {
  std::weak_ptr<OptimizerImpl> optimizer;
  Tensor found_inf;  // on the device of the scale; defined once the gradients were checked
  bool unscaled = false;
  bool stepped = false;
  bool left = false;  // the scale was updated for others
};

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  LEVIN_CHECK(options_.growth_factor > 1, "[grad_scaler] growth_factor ", options_.growth_factor, " must be above 1");
  LEVIN_CHECK(options_.backoff_factor < 1, "[grad_scaler] backoff_factor ", options_.backoff_factor,
              " must be below 1");
}

Tensor GradScaler::scale(const Tensor& loss) {
  begin_step();
  if (!scale_.defined() || scale_.device() != loss.device() || !skipped_.defined())
    levin::detail::refuse_capture("the loss scale is not on the device yet");
  if (!scale_.defined()) {
    const auto fp32 = at::TensorOptions().device(loss.device()).dtype(at::kFloat);
    scale_ = at::full({}, options_.init_scale, fp32);
    growth_tracker_ = at::zeros({}, fp32.dtype(at::kInt));
  }
  if (scale_.device() != loss.device()) {  // restored from a checkpoint, before the device was known
    scale_ = scale_.to(loss.device());
    growth_tracker_ = growth_tracker_.to(loss.device());
    skipped_.reset();
  }
  if (!skipped_.defined()) skipped_ = at::zeros({}, scale_.options().dtype(at::kLong));
  if (!fixed_) return loss * scale_;
  // 1, or nan where the loss is inf or nan: its gradients tell the other ranks, and one that has none itself.
  const auto here = loss.detach();
  return loss * (here * 0 + 1);
}

GradScaler GradScaler::that_skips() {
  GradScaler scaler({.init_scale = 1});
  scaler.fixed_ = true;
  return scaler;
}

int64_t GradScaler::take_skipped_steps() {
  if (!skipped_.defined()) return 0;
  const auto count = skipped_.item<int64_t>();
  skipped_.zero_();
  return count;
}

GradScaler::PerOptimizer& GradScaler::of(const Optimizer& optimizer) {
  for (auto& state : per_optimizer_)
    if (state->optimizer.lock() == optimizer.impl()) return *state;
  per_optimizer_.push_back(std::make_shared<PerOptimizer>());
  per_optimizer_.back()->optimizer = optimizer.impl();
  return *per_optimizer_.back();
}

// Looks for inf and nan in the gradients, device by device and dtype by dtype; divides them by the scale when asked.
void GradScaler::check_inf(PerOptimizer& state, Optimizer& optimizer, bool unscale) {
  at::NoGradGuard no_grad;
  LEVIN_CHECK(scale_.defined(),
              "[grad_scaler] no loss was scaled yet; call fabric.backward(loss) before the optimizer steps");
  std::map<std::pair<c10::Device, c10::ScalarType>, std::vector<Tensor>, decltype([](const auto& a, const auto& b) {
             return std::tuple(a.first.type(), a.first.index(), a.second) <
                    std::tuple(b.first.type(), b.first.index(), b.second);
           })>
      gradients;
  bool any = false;
  for (size_t group = 0; group < optimizer.num_groups(); ++group)
    for (auto& param : optimizer.params(group)) {
      auto& grad = param.mutable_grad();
      if (!grad.defined()) continue;
      any = true;
      if (grad.numel() == 0) continue;  // the part of a rank may be empty
      LEVIN_CHECK(
          !unscale || grad.scalar_type() != at::kHalf,
          "[grad_scaler] gradients in float16 cannot be unscaled; use precision \"16-mixed\" with float32 parameters");
      gradients[{grad.device(), grad.scalar_type()}].push_back(grad);
    }
  LEVIN_CHECK(any, "[grad_scaler] no parameter of ", optimizer.name(),
              " has a gradient; call fabric.backward(loss) first");
  // As in torch: the reciprocal is taken in double, since 1/scale in float can round.
  const auto factor = unscale ? used_scale().to(at::kDouble).reciprocal().to(at::kFloat) : at::ones_like(scale_);
  for (auto& [key, tensors] : gradients) {
    auto found = at::zeros({}, scale_.options().device(key.first));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found, factor.to(key.first, /*non_blocking=*/true));
    found = found.to(scale_.device(), /*non_blocking=*/true);
    state.found_inf = state.found_inf.defined() ? at::maximum(state.found_inf, found) : found;
  }
  if (!state.found_inf.defined()) state.found_inf = at::zeros_like(scale_);
  if (share_) share_(state.found_inf);
}

void GradScaler::unscale(Optimizer& optimizer) {
  auto& state = of(optimizer);
  LEVIN_CHECK(!state.stepped, "[grad_scaler] gradients were unscaled after the optimizer stepped; clip before step()");
  if (state.unscaled) return;
  check_inf(state, optimizer, /*unscale=*/true);
  state.unscaled = true;
}

void GradScaler::step(Optimizer& optimizer) {
  auto& state = of(optimizer);
  LEVIN_CHECK(!state.stepped, "[grad_scaler] the optimizer stepped twice without an update of the scale in between");
  if (!state.unscaled) check_inf(state, optimizer, /*unscale=*/false);
  state.stepped = true;
  const GradScale amp{state.unscaled ? Tensor() : used_scale(), state.found_inf};
  if (optimizer.impl()->step_scaled(amp)) return;
  if (!state.unscaled) {
    state.found_inf.reset();
    check_inf(state, optimizer, /*unscale=*/true);
    state.unscaled = true;
  }
  levin::detail::refuse_capture(optimizer.name() + " cannot step under a loss scaler without the host's help");
  if (state.found_inf.item<float>() == 0) optimizer.step();
}

void GradScaler::update() {
  Tensor found;
  for (const auto& state : per_optimizer_) {
    if (!state->found_inf.defined()) continue;
    found = found.defined() ? found + state->found_inf : state->found_inf;
  }
  LEVIN_CHECK(found.defined(), "[grad_scaler] update() before any optimizer stepped");
  skipped_.add_(found > 0);
  if (fixed_) {
    std::erase_if(per_optimizer_, [](const auto& state) { return state->stepped; });
    for (const auto& state : per_optimizer_) state->left = true;
    return;
  }
  if (before_.scale.defined()) {  // done again, with what was found since
    scale_.copy_(before_.scale);
    growth_tracker_.copy_(before_.growth_tracker);
    found = found + before_.found_inf;
  } else {
    before_ = {scale_.clone(), growth_tracker_.clone(), {}};
  }
  before_.found_inf = found;
  at::_amp_update_scale_(scale_, growth_tracker_, found, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  std::erase_if(per_optimizer_, [](const auto& state) { return state->stepped; });
  for (const auto& state : per_optimizer_) state->left = true;
}

void GradScaler::abandon_step() {
  per_optimizer_.clear();
  before_ = {};
}

void GradScaler::begin_step() {
  std::erase_if(per_optimizer_, [](const auto& state) { return state->left; });
  before_ = {};
  skips_ = false;
}

double GradScaler::current_scale() const {
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

StateDict GradScaler::state_dict() const {
  if (fixed_) return {};
  return {{"scale", current_scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", options_.growth_interval},
          {"_growth_tracker", growth_tracker_.defined() ? growth_tracker_.item<int64_t>() : int64_t{0}}};
}

void GradScaler::load_state_dict(const StateDict& state) {
  before_ = {};
  if (fixed_ || state.empty()) return;
  options_.init_scale = state.at("scale").to_double();
  options_.growth_factor = state.at("growth_factor").to_double();
  options_.backoff_factor = state.at("backoff_factor").to_double();
  options_.growth_interval = state.at("growth_interval").to_int();
  const auto tracker = state.at("_growth_tracker").to_int();
  if (!scale_.defined()) {
    scale_ = at::full({}, options_.init_scale, at::kFloat);
    growth_tracker_ = at::full({}, tracker, at::kInt);
    return;
  }
  scale_.fill_(options_.init_scale);
  growth_tracker_.fill_(tracker);
}

}  // namespace levin
