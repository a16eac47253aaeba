#include "levin/trainer/callbacks/progress_bar.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/trainer/context.h"

namespace levin {
namespace {

/// The N of ".../version_N".
std::optional<int64_t> version_of(const std::filesystem::path& folder) {
  constexpr std::string_view kPrefix = "version_";
  const auto name = folder.filename().string();
  int64_t version = 0;
  if (!name.starts_with(kPrefix)) return {};
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), version);
  if (error != std::errc() || end != name.data() + name.size()) return {};
  return version;
}

/// Batches of all loaders; 0 when that is not known.
int64_t all_batches(const TrainerContext& run) {
  int64_t total = 0;
  for (const auto& batches : run.num_eval_batches()) {
    if (!batches) return 0;
    const bool limited = run.sanity_checking() && run.plan().sanity_steps >= 0;
    total += limited ? std::min(*batches, run.plan().sanity_steps) : *batches;
  }
  return total;
}

}  // namespace

TrainerProgressBar::TrainerProgressBar(TrainerProgressBarOptions options) : options_(std::move(options)) {
  LEVIN_CHECK(options_.refresh_rate >= 0, "[TrainerProgressBar] refresh_rate is ", options_.refresh_rate,
              "; 0 (no bar) or more is needed");
}

ProgressOptions TrainerProgressBar::bar_options() const {
  return {.unit = "it", .file = options_.file, .live = options_.live, .keep = options_.leave, .clock = options_.clock};
}

void TrainerProgressBar::print_line(const std::string& line) {
  auto* bar = evaluation_ ? evaluation_.get() : train_.get();
  if (bar) {
    bar->print_above(line, options_.lines);
  } else {
    std::fputs((line + "\n").c_str(), options_.lines);
    std::fflush(options_.lines);
  }
}

void TrainerProgressBar::setup(TrainerContext& run, std::string_view) {
  enabled_ = run.fabric().is_global_zero() && options_.refresh_rate > 0;
  version_ = run.loggers().empty() ? std::nullopt : version_of(run.log_dir());
  train_.reset();
  evaluation_.reset();
}

void TrainerProgressBar::teardown(TrainerContext&, std::string_view) {
  evaluation_.reset();
  train_.reset();
}

void TrainerProgressBar::on_exception(TrainerContext&, const std::exception&) {
  // The error's line comes next, and needs one of its own.
  if (evaluation_) evaluation_->discard();
  evaluation_.reset();
  if (train_) train_->finish();
  train_.reset();
}

void TrainerProgressBar::start_training(TrainerContext& run) {
  const auto& plan = run.plan();
  const auto& progress = run.progress();
  const auto label = plan.max_epochs > 0 ? fmt::format("Epoch {}/{}", progress.epoch + 1, plan.max_epochs)
                                         : fmt::format("Epoch {}", progress.epoch + 1);
  auto total = run.num_training_batches();
  if (plan.max_steps > 0) {
    // The run may end inside the epoch.
    const int64_t left =
        progress.batch + std::max<int64_t>(0, plan.max_steps - progress.global_step) * run.plan().accumulate;
    total = total ? std::min(*total, left) : left;
  }
  if (train_) train_->discard();
  train_ = std::make_unique<ProgressBar>(label, total.value_or(0), bar_options());
  if (progress.batch > 0) train_->start_at(progress.batch);
  uncounted_ = 0;
}

void TrainerProgressBar::on_train_epoch_start(TrainerContext& run) {
  if (enabled_) start_training(run);
}

void TrainerProgressBar::on_train_start(TrainerContext& run) {
  // A run that resumes inside an epoch does not start that epoch again.
  if (enabled_ && run.progress().batch > 0) start_training(run);
}

bool TrainerProgressBar::count(ProgressBar& bar) {
  if (++uncounted_ < options_.refresh_rate) return false;
  return bar.count(std::exchange(uncounted_, 0));
}

void TrainerProgressBar::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  if (!train_ || !count(*train_)) return;
  show_metrics(run, *train_, /*finished=*/false);
  train_->redraw();
}

void TrainerProgressBar::on_train_epoch_end(TrainerContext& run) {
  // Metrics of the epoch may be reduced over the ranks when they are asked for, so every rank asks.
  if (!train_) {
    if (run.fabric().world_size() > 1 && options_.refresh_rate > 0) run.metrics().progress_bar_metrics();
    return;
  }
  (void)train_->count(std::exchange(uncounted_, 0));
  show_metrics(run, *train_, /*finished=*/true);
  options_.leave ? train_->finish() : train_->discard();
  train_.reset();
}

void TrainerProgressBar::show_metrics(TrainerContext& run, ProgressBar& bar, bool finished) {
  const auto metrics = run.metrics().progress_bar_metrics();
  const std::string_view hidden = finished ? "_step" : "_epoch", twin = finished ? "_epoch" : "_step";
  const auto is_hidden = [&](const std::string& name) {
    return name.ends_with(hidden) && metrics.contains(name.substr(0, name.size() - hidden.size()) + std::string(twin));
  };
  bar.clear_numbers();
  if (version_) bar.set("v_num", static_cast<double>(*version_));
  for (const auto& [name, value] : metrics) {
    if (is_hidden(name)) continue;
    const auto* tensor = std::get_if<Tensor>(&value);
    bar.set(name, tensor ? tensor->item<double>() : std::get<double>(value));
  }
}

void TrainerProgressBar::advance_evaluation() {
  // Metrics of an evaluation are known at its end.
  if (evaluation_ && count(*evaluation_)) evaluation_->redraw();
}

void TrainerProgressBar::start_evaluation(TrainerContext& run, std::string label) {
  if (!enabled_) return;
  if (train_) {
    (void)train_->count(std::exchange(uncounted_, 0));
    train_->pause();
  }
  evaluation_ = std::make_unique<ProgressBar>(std::move(label), all_batches(run), bar_options());
}

void TrainerProgressBar::end_evaluation(TrainerContext& run, bool keep) {
  if (!evaluation_) return;
  (void)evaluation_->count(std::exchange(uncounted_, 0));
  if (keep) {
    show_metrics(run, *evaluation_, /*finished=*/true);
    evaluation_->finish();
  } else {
    evaluation_->discard();
  }
  evaluation_.reset();
  if (train_) train_->resume();
}

void TrainerProgressBar::on_validation_start(TrainerContext& run) {
  start_evaluation(run, run.sanity_checking() ? "Sanity check" : "Validating");
}

void TrainerProgressBar::on_validation_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {
  advance_evaluation();
}

void TrainerProgressBar::on_validation_end(TrainerContext& run) {
  // Inside fit the line of the epoch shows the metrics.
  end_evaluation(run, options_.leave && !run.fitting());
}

void TrainerProgressBar::on_test_start(TrainerContext& run) {
  start_evaluation(run, "Testing");
}

void TrainerProgressBar::on_test_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {
  advance_evaluation();
}

void TrainerProgressBar::on_test_end(TrainerContext& run) {
  end_evaluation(run, options_.leave);
}

void TrainerProgressBar::on_predict_start(TrainerContext& run) {
  start_evaluation(run, "Predicting");
}

void TrainerProgressBar::on_predict_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, const StepInfo&) {
  advance_evaluation();
}

void TrainerProgressBar::on_predict_end(TrainerContext& run) {
  end_evaluation(run, options_.leave);
}

}  // namespace levin
