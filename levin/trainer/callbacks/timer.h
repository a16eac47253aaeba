#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "levin/trainer/callback.h"
#include "levin/trainer/callbacks/monitor.h"
#include "levin/trainer/step.h"
#include "levin/trainer/values.h"

namespace levin {

struct TimerOptions {
  /// "DD:HH:MM:SS", "90 min" or a std::chrono duration; nothing: measure only.
  std::optional<Duration> duration = {};
  /// Look after each "step", or after each "epoch".
  std::string interval = "step";
  /// Say so when the time is over.
  bool verbose = true;
  /// Seconds, rising; for tests.
  std::function<double()> clock = {};
};

/// Measures the time of training, validation and tests, and ends the run when its time is over. The time counts on in a
/// run that resumes from a checkpoint. min_steps and min_epochs come first.
///
///     levin::Trainer trainer({.callbacks = {levin::Timer({.duration = "00:12:00:00"})}});
///
/// The clock of rank 0 decides. With several ranks it is asked less often while much time is left, so that nobody waits
/// for anybody at every batch.
class Timer : public Callback {
 public:
  explicit Timer(TimerOptions options = {});

  /// Seconds spent in a stage: kTrain (with validation in it), kValidate, kTest or kPredict.
  double time_elapsed(Stage stage = Stage::kTrain) const;
  /// Seconds of training that are left; nothing without a duration.
  std::optional<double> time_remaining() const;

  std::string state_key() const override { return "Timer"; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void setup(TrainerContext& run, std::string_view stage) override;
  void on_fit_start(TrainerContext& run) override;
  void on_train_start(TrainerContext&) override { start(Stage::kTrain); }
  void on_train_end(TrainerContext&) override { end(Stage::kTrain); }
  void on_validation_start(TrainerContext&) override { start(Stage::kValidate); }
  void on_validation_end(TrainerContext&) override { end(Stage::kValidate); }
  void on_test_start(TrainerContext&) override { start(Stage::kTest); }
  void on_test_end(TrainerContext&) override { end(Stage::kTest); }
  void on_predict_start(TrainerContext&) override { start(Stage::kPredict); }
  void on_predict_end(TrainerContext&) override { end(Stage::kPredict); }
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t batch_idx) override;
  void on_train_epoch_end(TrainerContext& run) override;

 private:
  struct Span {
    double before = 0;  // of earlier passes and runs
    std::optional<double> started = {};
  };
  void start(Stage stage) { spans_[static_cast<size_t>(stage)].started = options_.clock(); }
  void end(Stage stage);
  void check(TrainerContext& run, bool over);

  TimerOptions options_;
  bool by_step_ = true;
  bool stopped_ = false;
  std::array<Span, 6> spans_{};
  detail::SharedTimer timer_;
};

}  // namespace levin
