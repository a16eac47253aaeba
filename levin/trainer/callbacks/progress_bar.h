#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "levin/core/progress_bar.h"
#include "levin/trainer/callback.h"

namespace levin {

struct TrainerProgressBarOptions {
  /// Look whether a drawing is due after every n batches; 0: no bar.
  int64_t refresh_rate = 1;
  /// Finished bars stay on the terminal.
  bool leave = true;
  /// Where it is drawn.
  std::FILE* file = stderr;
  /// Where lines go that are printed above it.
  std::FILE* lines = stdout;
  /// One line that is redrawn, or plain lines. By default as fits the file.
  std::optional<bool> live = {};
  /// Seconds, rising; for tests.
  std::function<double()> clock = {};
};

/// Shows how far a run is, on rank 0:
///
///     Epoch 3/10 ━━━━━━━━━━━━╸─────── 62% 145/234  183 it/s  v_num 0  train_loss 0.412  0:07<0:04
///
/// On a terminal one line, in which validation shows itself while it runs; the finished line of an epoch stays, with
/// the metrics that were logged with `prog_bar`. Elsewhere a few plain lines. A batch costs a look at the clock:
/// metrics are read from the device only when they are shown. What the line looks like is in
/// levin/core/progress_bar_style.h.
class TrainerProgressBar : public Callback {
 public:
  explicit TrainerProgressBar(TrainerProgressBarOptions options = {});

  /// Prints a line above the bar, or just so when there is none.
  virtual void print_line(const std::string& line);

  // Monitors come after the module at the end of an epoch, so that its last line shows what was logged there.
  CallbackOrder order() const override { return CallbackOrder::kMonitor; }
  void setup(TrainerContext& run, std::string_view stage) override;
  void teardown(TrainerContext& run, std::string_view stage) override;
  void on_train_start(TrainerContext& run) override;
  void on_train_epoch_start(TrainerContext& run) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t batch_idx) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_validation_start(TrainerContext& run) override;
  void on_validation_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, const StepInfo&) override;
  void on_validation_end(TrainerContext& run) override;
  void on_test_start(TrainerContext& run) override;
  void on_test_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, const StepInfo&) override;
  void on_test_end(TrainerContext& run) override;
  void on_predict_start(TrainerContext& run) override;
  void on_predict_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, const StepInfo&) override;
  void on_predict_end(TrainerContext& run) override;
  void on_exception(TrainerContext& run, const std::exception& error) override;

 protected:
  /// What stands beside the bar. Defaults to the version of the first logger and what was logged with `prog_bar`: of a
  /// metric that has a value for each step and one for the epoch the former, and of a finished bar the latter.
  virtual void show_metrics(TrainerContext& run, ProgressBar& bar, bool finished);

 private:
  ProgressOptions bar_options() const;
  void start_training(TrainerContext& run);
  void start_evaluation(TrainerContext& run, std::string label);
  void end_evaluation(TrainerContext& run, bool keep);
  /// True when a drawing is due.
  bool count(ProgressBar& bar);
  void advance_evaluation();

  TrainerProgressBarOptions options_;
  bool enabled_ = false;
  std::optional<int64_t> version_;
  int64_t uncounted_ = 0;
  std::unique_ptr<ProgressBar> train_;
  std::unique_ptr<ProgressBar> evaluation_;
};

}  // namespace levin
