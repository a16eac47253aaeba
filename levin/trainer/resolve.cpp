// What was asked becomes what will be done; every refusal is here, before anything starts.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/trainer/options.h"

namespace levin {
namespace {

void check_limit(const char* name, const Limit& limit) {
  if (limit.is_fraction())
    LEVIN_CHECK(limit.fraction() >= 0 && limit.fraction() <= 1, "[trainer] ", name, " ", limit.to_string(),
                " is not allowed: a fraction is between 0.0 and 1.0, a number of batches is an integer");
  else
    LEVIN_CHECK(limit.count() >= 0, "[trainer] ", name, " ", limit.to_string(), " is not allowed (0 or more batches)");
}

void check_interval(const TrainerOptions& asked, const Interval& interval) {
  const auto text = interval.to_string();
  switch (interval.unit()) {
    case Interval::Unit::kFraction:
      LEVIN_CHECK(
          interval.fraction() > 0 && interval.fraction() <= 1, "[trainer] val_check_interval ", text,
          " is not allowed: a fraction of an epoch is above 0.0 and at most 1.0, a number of batches is an integer");
      LEVIN_CHECK(
          asked.check_val_every_n_epoch || !asked.val_check_interval, "[trainer] val_check_interval ", text,
          " is a fraction of an epoch, which check_val_every_n_epoch = none does not go with; give batches or steps");
      break;
    case Interval::Unit::kBatches:
    case Interval::Unit::kSteps:
      LEVIN_CHECK(interval.count() >= 1, "[trainer] val_check_interval ", text, " is not allowed (1 or more)");
      break;
    case Interval::Unit::kTime:
      LEVIN_CHECK(interval.seconds() > 0, "[trainer] val_check_interval ", text,
                  " is not allowed: it is no time at all");
      break;
  }
}

void check_barebones(const TrainerOptions& asked) {
  const auto refuse = [](bool asked_for, const char* what) {
    LEVIN_CHECK(!asked_for, "[trainer] barebones measures the loop alone, so ", what, " cannot be asked for as well");
  };
  refuse(asked.enable_checkpointing.value_or(false), "enable_checkpointing");
  refuse(asked.logger.is_set() && !asked.logger.is_off(), "logger");
  refuse(asked.enable_progress_bar.value_or(false), "enable_progress_bar");
  refuse(asked.enable_model_summary.value_or(false), "enable_model_summary");
  refuse(asked.num_sanity_val_steps.value_or(0) != 0, "num_sanity_val_steps");
  refuse(asked.log_every_n_steps.value_or(0) != 0, "log_every_n_steps");
  refuse(asked.fast_dev_run != 0, "fast_dev_run");
  refuse(asked.detect_anomaly, "detect_anomaly");
  refuse(asked.profiler.is_set(), "profiler");
}

NonFinitePolicy policy_of(const std::string& word) {
  static const std::vector<std::string> kWords{"stop", "skip", "warn", "rollback"};
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  if (found == kWords.end()) fail_unknown("trainer", "on_nonfinite", word, kWords);
  return static_cast<NonFinitePolicy>(found - kWords.begin());
}

}  // namespace

TrainerPlan resolve_trainer(const TrainerOptions& asked, int cuda_devices) {
  TrainerPlan plan;
  plan.fabric = {.accelerator = asked.accelerator,
                 .strategy = asked.sync_batchnorm ? asked.strategy.with_sync_batchnorm() : asked.strategy,
                 .devices = asked.devices,
                 .num_nodes = asked.num_nodes,
                 .precision = asked.precision,
                 .plugins = asked.plugins,
                 .compile = asked.compile,
                 .skip_nonfinite = asked.on_nonfinite == "skip"};
  plan.devices = resolve(plan.fabric, cuda_devices);

  if (asked.barebones) check_barebones(asked);
  plan.barebones = asked.barebones;
  LEVIN_CHECK(asked.fast_dev_run >= 0, "[trainer] fast_dev_run ", asked.fast_dev_run,
              " is not allowed (0 or more batches)");
  plan.fast_dev_run = asked.fast_dev_run;
  const auto at_least = [](const char* name, std::optional<int64_t> value, int64_t least, const char* meaning) {
    LEVIN_CHECK(!value || *value >= least, "[trainer] ", name, " ", value.value_or(0), " is not allowed (", meaning,
                ")");
  };
  at_least("max_epochs", asked.max_epochs, -1, "-1 for no end, or 0 or more");
  at_least("min_epochs", asked.min_epochs, 0, "0 or more");
  at_least("max_steps", asked.max_steps, -1, "-1 for no end, or 0 or more");
  at_least("min_steps", asked.min_steps, 0, "0 or more");
  at_least("num_sanity_val_steps", asked.num_sanity_val_steps, -1, "-1 for all, or 0 or more");
  at_least("log_every_n_steps", asked.log_every_n_steps, 0, "0 for never, or 1 or more");
  at_least("check_val_every_n_epoch", asked.check_val_every_n_epoch, 1, "1 or more, or none");
  at_least("accumulate_grad_batches", asked.accumulate_grad_batches, 1, "1 or more");
  at_least("reload_dataloaders_every_n_epochs", asked.reload_dataloaders_every_n_epochs, 0,
           "0 for never, or 1 or more");

  plan.min_steps = asked.min_steps.value_or(0);
  plan.min_epochs = asked.min_epochs.value_or(asked.min_steps ? 1 : 0);
  plan.max_steps = asked.max_steps;
  plan.max_time = asked.max_time;
  LEVIN_CHECK(!plan.max_time || plan.max_time->seconds() >= 0, "[trainer] max_time ", plan.max_time->to_string(),
              " is not allowed (0 or more)");
  plan.max_epochs_is_default = !asked.max_epochs && asked.max_steps == -1 && !asked.max_time;
  plan.max_epochs = asked.max_epochs.value_or(plan.max_epochs_is_default ? 1000 : -1);
  LEVIN_CHECK(plan.max_epochs < 0 || plan.min_epochs <= plan.max_epochs, "[trainer] min_epochs ", plan.min_epochs,
              " is more than max_epochs ", plan.max_epochs);
  LEVIN_CHECK(plan.max_steps < 0 || plan.min_steps <= plan.max_steps, "[trainer] min_steps ", plan.min_steps,
              " is more than max_steps ", plan.max_steps);

  plan.limit_train = asked.limit_train_batches.value_or(1.0);
  plan.limit_val = asked.limit_val_batches.value_or(1.0);
  plan.limit_test = asked.limit_test_batches.value_or(1.0);
  plan.limit_predict = asked.limit_predict_batches.value_or(1.0);
  check_limit("limit_train_batches", plan.limit_train);
  check_limit("limit_val_batches", plan.limit_val);
  check_limit("limit_test_batches", plan.limit_test);
  check_limit("limit_predict_batches", plan.limit_predict);
  check_limit("overfit_batches", asked.overfit_batches);
  if (!asked.overfit_batches.is_zero()) {
    plan.overfits = true;
    plan.limit_train = plan.limit_val = asked.overfit_batches;
  }
  plan.val_check = asked.val_check_interval.value_or(1.0);
  check_interval(asked, plan.val_check);
  plan.check_val_every_n_epoch = asked.check_val_every_n_epoch;
  plan.sanity_steps = asked.num_sanity_val_steps.value_or(2);
  plan.log_every_n_steps = asked.log_every_n_steps.value_or(50);
  plan.checkpoints = asked.enable_checkpointing.value_or(true);
  plan.progress_bar = asked.enable_progress_bar.value_or(true);
  plan.model_summary = asked.enable_model_summary.value_or(true);
  plan.accumulate = asked.accumulate_grad_batches;
  plan.clip_val = asked.gradient_clip_val.value_or(0);
  LEVIN_CHECK(std::isfinite(plan.clip_val), "[trainer] gradient_clip_val must be a finite number");
  static const std::vector<std::string> kAlgorithms{"norm", "value"};
  const auto& algorithm = asked.gradient_clip_algorithm;
  if (!algorithm.empty() && algorithm != "norm" && algorithm != "value")
    fail_unknown("trainer", "gradient_clip_algorithm", algorithm, kAlgorithms);
  plan.clips_value = algorithm == "value";
  plan.deterministic = asked.deterministic;
  plan.benchmark = asked.benchmark;
  if (plan.deterministic.is_on() && asked.benchmark.value_or(false))
    log_warning(
        "[trainer] benchmark picks algorithms by their speed, which may differ from run to run in spite of "
        "deterministic");
  plan.inference_mode = asked.inference_mode;
  plan.use_distributed_sampler = asked.use_distributed_sampler;
  plan.detect_anomaly = asked.detect_anomaly;
  plan.reload_every_n_epochs = asked.reload_dataloaders_every_n_epochs;
  plan.root_dir = asked.default_root_dir.empty() ? std::filesystem::path(".") : asked.default_root_dir;
  plan.autolog_hparams = asked.enable_autolog_hparams;
  plan.on_nonfinite = policy_of(asked.on_nonfinite);
  at_least("max_rollbacks", asked.max_rollbacks, 1, "1 or more");
  plan.max_rollbacks = asked.max_rollbacks;
  LEVIN_CHECK(plan.on_nonfinite != NonFinitePolicy::kRollback || asked.enable_checkpointing.value_or(true),
              "[trainer] on_nonfinite \"rollback\" goes back to a checkpoint of the run, which enable_checkpointing = "
              "false does not write");

  if (plan.fast_dev_run > 0) {
    plan.limit_train = plan.limit_val = plan.limit_test = plan.limit_predict = plan.fast_dev_run;
    plan.max_steps = plan.fast_dev_run;
    plan.max_epochs = 1;
    plan.min_epochs = plan.min_steps = 0;
    plan.max_epochs_is_default = false;
    plan.sanity_steps = 0;
    plan.val_check = 1.0;
    plan.check_val_every_n_epoch = 1;
    plan.checkpoints = false;
  }
  if (plan.barebones) {
    plan.checkpoints = plan.progress_bar = plan.model_summary = false;
    plan.sanity_steps = plan.log_every_n_steps = 0;
  }
  return plan;
}

std::string TrainerPlan::to_string() const {
  std::string length;
  if (max_epochs >= 0) length = fmt::format("{} epoch{}", max_epochs, max_epochs == 1 ? "" : "s");
  if (max_steps >= 0) length += fmt::format("{}{} optimizer steps", length.empty() ? "" : " or ", max_steps);
  if (max_time) length += fmt::format("{}{}", length.empty() ? "" : " or ", max_time->to_string());
  if (length.empty()) length = "without end";
  auto text = fmt::format("{}; {}", devices.to_string(), length);
  if (accumulate > 1) text += fmt::format("; a step every {} batches", accumulate);
  if (clip_val > 0) text += fmt::format("; gradients clipped at {} {}", clips_value ? "value" : "norm", clip_val);
  if (fast_dev_run > 0)
    text += fmt::format("; fast_dev_run: {} batches of everything, no logs, no checkpoints", fast_dev_run);
  if (overfits) text += "; overfit_batches: the same batches, in order, for training and validation";
  return text;
}

}  // namespace levin
