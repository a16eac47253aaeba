#pragma once

#include "levin/trainer/context.h"

namespace levin::detail {

class Run;

/// A run as callbacks, modules and tuners see it.
class RunContext final : public TrainerContext, private RunMetrics, private Tuning {
 public:
  explicit RunContext(Run& run) : run_(run) {}

  Run& run() const { return run_; }

 private:
  // RunPosition.
  Stage stage() const override;
  bool fitting() const override;
  const Progress& progress() const override;
  bool is_last_batch() const override;
  std::optional<int64_t> num_training_batches() const override;
  std::vector<std::optional<int64_t>> num_eval_batches() const override;
  std::optional<int64_t> estimated_stepping_batches() const override;
  const TrainerPlan& plan() const override;

  // TrainerContext.
  Fabric& fabric() const override;
  TrainModuleBase& module() const override;
  const std::vector<Optimizer>& optimizers() const override;
  std::vector<SchedulerConfig>& schedulers() override;
  const std::vector<CallbackRef>& callbacks() const override;
  const std::vector<std::shared_ptr<Logger>>& loggers() const override;
  std::filesystem::path log_dir() const override;
  std::optional<double> metric(std::string_view name) override;
  RunMetrics& metrics() override { return *this; }
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void log_row(const Metrics& metrics) override;
  bool row_is_due() const override;
  void stop(std::string_view reason) override;
  void request_stop(std::string_view reason) override;
  bool should_stop() const override;
  void save_checkpoint(const std::filesystem::path& path, bool weights_only, std::function<void()> then) override;
  const std::filesystem::path& ckpt_path() const override;
  bool resumes_last() const override;
  bool weights_are_finite() override;
  bool step_is_finite() const override;
  void call_model(const std::function<void()>& call) override;
  Tuning& tuning() override { return *this; }
  void print_line(const std::string& line) override;
  bool in_parts() const override;
  void save_validated(const std::filesystem::path& path, bool weights_only, std::function<void()> then) override;

  // RunMetrics.
  MetricMap callback_metrics() override;
  MetricMap logged_metrics() override;
  MetricMap progress_bar_metrics() override;

  // Tuning.
  bool run_trial(const Trial& trial) override;
  std::optional<int64_t> train_batch_size() const override;
  void set_train_batch_size(int64_t batch_size) override;
  void set_accumulate_grad_batches(int64_t k) override;
  void set_max_epochs(int64_t epochs) override;
  void set_forward_only(bool enabled) override;

  Run& run_;
};

}  // namespace levin::detail
