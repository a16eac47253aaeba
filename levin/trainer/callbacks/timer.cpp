#include "levin/trainer/callbacks/timer.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/trainer/context.h"

namespace levin {

Timer::Timer(TimerOptions options) : options_(std::move(options)) {
  static const std::vector<std::string> known{"step", "epoch"};
  if (options_.interval != "step" && options_.interval != "epoch")
    fail_unknown("Timer", "interval", options_.interval, known);
  LEVIN_CHECK(!options_.duration || options_.duration->seconds() >= 0, "[Timer] duration is negative");
  by_step_ = options_.interval == "step";
  if (!options_.clock) options_.clock = detail::monotonic_seconds;
}

double Timer::time_elapsed(Stage stage) const {
  const auto& span = spans_[static_cast<size_t>(stage)];
  return span.before + (span.started ? options_.clock() - *span.started : 0);
}

std::optional<double> Timer::time_remaining() const {
  if (!options_.duration) return {};
  return options_.duration->seconds() - time_elapsed();
}

void Timer::end(Stage stage) {
  auto& span = spans_[static_cast<size_t>(stage)];
  span.before = time_elapsed(stage);
  span.started.reset();
}

StateDict Timer::state_dict() const {
  return {{"train", time_elapsed(Stage::kTrain)}, {"validate", time_elapsed(Stage::kValidate)}};
}

void Timer::load_state_dict(const StateDict& state) {
  spans_[static_cast<size_t>(Stage::kTrain)] = {state.at("train").to_double(), {}};
  spans_[static_cast<size_t>(Stage::kValidate)] = {state.at("validate").to_double(), {}};
}

void Timer::setup(TrainerContext&, std::string_view stage) {
  if (stage == "fit") {
    spans_ = {};
    stopped_ = false;
    timer_.restart();
  }
}

void Timer::on_fit_start(TrainerContext& run) {
  // The time of the run that this one resumes may be over already.
  if (!options_.duration) return;
  check(run, run.fabric().broadcast(time_elapsed() >= options_.duration->seconds()));
}

void Timer::on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) {
  if (!by_step_ || !options_.duration || stopped_) return;
  check(run, timer_.is_over(run.fabric(), time_elapsed(), options_.duration->seconds()));
}

void Timer::on_train_epoch_end(TrainerContext& run) {
  if (by_step_ || !options_.duration || stopped_) return;
  check(run, run.fabric().broadcast(time_elapsed() >= options_.duration->seconds()));
}

void Timer::check(TrainerContext& run, bool over) {
  if (!over) return;
  stopped_ = true;
  if (options_.verbose) run.print("Timer: the time is over after ", format_duration(time_elapsed()));
  run.stop("the time is over");
}

}  // namespace levin
