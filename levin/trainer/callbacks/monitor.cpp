#include "levin/trainer/callbacks/monitor.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/trainer/context.h"
#include "levin/trainer/nonfinite.h"

namespace levin::detail {

bool is_rehearsal(const TrainerContext& run) {
  return !run.fitting() || run.sanity_checking() || run.plan().fast_dev_run > 0;
}

bool can_save_on(const std::exception& error, const TrainerContext& run) {
  if (is_rehearsal(run)) return false;
  return run.fabric().world_size() == 1 || dynamic_cast<const Interrupted*>(&error) != nullptr ||
         dynamic_cast<const NonFiniteError*>(&error) != nullptr;
}

bool has_validation(const TrainerContext& run) {
  if (run.plan().limit_val.is_zero()) return false;
  const auto batches = run.num_eval_batches();
  return std::any_of(batches.begin(), batches.end(), [](const auto& n) { return n.value_or(1) > 0; });
}

bool epoch_end_knows_all(const TrainerContext& run) {
  if (!has_validation(run)) return true;
  const auto& plan = run.plan();
  return plan.check_val_every_n_epoch == 1 && plan.val_check.unit() == Interval::Unit::kFraction &&
         plan.val_check.fraction() == 1.0;
}

bool lower_is_better(std::string_view callback, std::string_view mode) {
  static const std::vector<std::string> known{"min", "max"};
  if (mode != "min" && mode != "max") fail_unknown(callback, "mode", mode, known);
  return mode == "min";
}

std::string missing_metric_line(std::string_view callback, std::string_view metric, TrainerContext& run) {
  std::vector<std::string> names;
  for (const auto& entry : run.metrics().callback_metrics()) names.push_back(entry.first);
  const auto nearest = nearest_word(metric, names);
  return fmt::format("[{}] metric \"{}\" was not logged{}; log(\"{}\", value) makes it known (logged: {})", callback,
                     metric, nearest.empty() ? "" : fmt::format(", did you mean \"{}\"?", nearest), metric,
                     names.empty() ? "nothing" : join(names));
}

void fail_missing_metric(std::string_view callback, std::string_view metric, TrainerContext& run) {
  fail(missing_metric_line(callback, metric, run));
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool SharedTimer::is_over(Fabric& fabric, double elapsed, double limit) {
  if (fabric.world_size() == 1) return elapsed >= limit;
  if (++calls_ < wait_) return false;
  int64_t answer = 0;  // over
  if (elapsed < limit) {
    const double per_call = (elapsed - asked_at_) / static_cast<double>(calls_);
    const double half = (limit - elapsed) / 2;
    answer = per_call > 0 ? static_cast<int64_t>(std::clamp(half / per_call, 1.0, 1e6)) : 1;
  }
  answer = fabric.broadcast(answer);
  calls_ = 0;
  asked_at_ = elapsed;
  wait_ = std::max<int64_t>(answer, 1);
  return answer == 0;
}

}  // namespace levin::detail
