#include "levin/trainer/callbacks/early_stopping.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/trainer/callbacks/monitor.h"
#include "levin/trainer/context.h"

namespace levin {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), lower_is_better_(detail::lower_is_better("EarlyStopping", options_.mode)) {
  LEVIN_CHECK(!options_.monitor.empty(), "[EarlyStopping] monitor is empty; it is the name of a metric that is logged");
  LEVIN_CHECK(options_.patience >= 0, "[EarlyStopping] patience is ", options_.patience, "; 0 or more is needed");
  LEVIN_CHECK(options_.min_delta >= 0, "[EarlyStopping] min_delta is ", options_.min_delta, "; 0 or more is needed");
  start_over();
}

void EarlyStopping::start_over() {
  wait_count_ = stopped_epoch_ = 0;
  best_ = lower_is_better_ ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity();
  reason_ = StoppingReason::kNotStopped;
  message_.clear();
}

std::string EarlyStopping::state_key() const {
  return fmt::format("EarlyStopping{{monitor={}, mode={}}}", options_.monitor, options_.mode);
}

StateDict EarlyStopping::state_dict() const {
  return {{"wait_count", wait_count_},
          {"stopped_epoch", stopped_epoch_},
          {"best_score", best_},
          {"stopping_reason", static_cast<int64_t>(reason_)},
          {"stopping_reason_message", message_}};
}

void EarlyStopping::load_state_dict(const StateDict& state) {
  wait_count_ = state.at("wait_count").to_int();
  stopped_epoch_ = state.at("stopped_epoch").to_int();
  best_ = state.at("best_score").to_double();
  reason_ = static_cast<StoppingReason>(state.at("stopping_reason").to_int());
  message_ = state.at("stopping_reason_message").to_string();
}

void EarlyStopping::setup(TrainerContext&, std::string_view stage) {
  if (stage == "fit") start_over();
}

bool EarlyStopping::checks_at_train_epoch_end(const TrainerContext& run) const {
  return options_.check_on_train_epoch_end ? *options_.check_on_train_epoch_end : detail::epoch_end_knows_all(run);
}

void EarlyStopping::on_train_epoch_end(TrainerContext& run) {
  if (!detail::is_rehearsal(run) && checks_at_train_epoch_end(run)) check(run);
}

void EarlyStopping::on_validation_end(TrainerContext& run) {
  if (!detail::is_rehearsal(run) && !checks_at_train_epoch_end(run)) check(run);
}

void EarlyStopping::check(TrainerContext& run) {
  const auto current = run.metric(options_.monitor);
  if (!current) {
    if (options_.strict) detail::fail_missing_metric("EarlyStopping", options_.monitor, run);
    if (options_.verbose) warn_once(detail::missing_metric_line("EarlyStopping", options_.monitor, run));
  }
  std::string message;
  const auto own = current ? judge(*current, message) : StoppingReason::kNotStopped;
  auto& fabric = run.fabric();
  if (own == StoppingReason::kNotStopped && options_.verbose && !message.empty()) {
    if (fabric.world_size() == 1)
      run.print("EarlyStopping: ", message);
    else if (fabric.is_global_zero() || !options_.log_rank_zero_only)
      fmt::print(stderr, "EarlyStopping: [rank {}] {}\n", fabric.global_rank(), message);
  }
  auto reason = static_cast<int64_t>(own);
  if (fabric.world_size() > 1)
    reason = fabric.all_reduce(at::scalar_tensor(reason, at::kLong).to(fabric.device()), "max").item<int64_t>();
  if (reason == 0) return;
  reason_ = static_cast<StoppingReason>(reason);
  message_ =
      own != StoppingReason::kNotStopped ? message : fmt::format("{} ends the run on another rank", options_.monitor);
  stopped_epoch_ = run.current_epoch();
  // A stop that waits for min_epochs or min_steps is asked for again and again.
  if (!run.should_stop()) run.print("EarlyStopping: ", message_);
  run.stop(message_);
}

StoppingReason EarlyStopping::judge(double current, std::string& message) {
  const auto& o = options_;
  if (o.check_finite && !std::isfinite(current)) {
    message = fmt::format("{} is {}, which is not finite (best before: {:.5g})", o.monitor, current, best_);
    return StoppingReason::kNonFiniteMetric;
  }
  if (o.stopping_threshold && is_better(current, *o.stopping_threshold)) {
    message = fmt::format("{} {:.5g} is better than the stopping threshold {:.5g}", o.monitor, current,
                          *o.stopping_threshold);
    return StoppingReason::kStoppingThreshold;
  }
  if (o.divergence_threshold && is_better(-current, -*o.divergence_threshold)) {
    message = fmt::format("{} {:.5g} is worse than the divergence threshold {:.5g}", o.monitor, current,
                          *o.divergence_threshold);
    return StoppingReason::kDivergenceThreshold;
  }
  if (is_better(lower_is_better_ ? current + o.min_delta : current - o.min_delta, best_)) {
    message = std::isfinite(best_) ? fmt::format("{} improved from {:.5g} to {:.5g}", o.monitor, best_, current)
                                   : fmt::format("{} is {:.5g}, the first value", o.monitor, current);
    best_ = current;
    wait_count_ = 0;
    return StoppingReason::kNotStopped;
  }
  if (++wait_count_ < o.patience) return StoppingReason::kNotStopped;
  message = fmt::format("{} did not improve in {} {} (best {:.5g})", o.monitor, wait_count_,
                        wait_count_ == 1 ? "check" : "checks", best_);
  return StoppingReason::kPatienceExhausted;
}

}  // namespace levin
