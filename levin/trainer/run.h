#pragma once

#include <array>
#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "levin/profilers/profiler.h"
#include "levin/trainer/advice.h"
#include "levin/trainer/context.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/loss_watch.h"
#include "levin/trainer/metric_log.h"
#include "levin/trainer/signals.h"
#include "levin/trainer/train_module.h"
#include "levin/trainer/trainer.h"

namespace levin::detail {

/// What a hook is called, and what log() means in it.
const LogSite& hook_site(Hook hook);
const LogSite& step_site(Stage stage);
extern const LogSite kNoLogging;
extern const LogSite kTransferSite;
/// The optimizer as Fabric knows it: without what counts the steps of manual optimization.
Optimizer as_set_up(const Optimizer& optimizer);

/// The loaders of one stage and how much of them is used.
struct StageData {
  AnyLoaders loaders;
  /// Batches of each loader on this rank, limited; nothing when that is not known.
  std::vector<std::optional<int64_t>> batches;
  /// Batches that each loader has given in earlier passes: rows of evaluation steps count on from there.
  std::vector<int64_t> seen;
  /// Batches that every rank has; 0 when that is not known.
  std::vector<int64_t> common;
  bool ready = false;
};

/// One trainer at work: everything the loops share. The loops are functions over it (loops/), the rest are its parts:
/// set-up and what callbacks may ask (run.cpp), checkpoints (run_state.cpp), logs (run_log.cpp).
class Run final : public TrainerContext {
 public:
  explicit Run(TrainerOptions asked);
  ~Run() override;

  // The four jobs (jobs.cpp).
  void fit(TrainModuleBase& module, DataModuleBase* data, AnyLoaders train, AnyLoaders val, const FitOptions& options);
  std::vector<EvaluationResult> evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                                         const EvaluateOptions& options);
  std::vector<std::vector<StepOutput>> predict(TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                                               const PredictOptions& options);
  void launch(const Args* args);

  // TrainerContext.
  Stage stage() const override { return stage_; }
  bool fitting() const override { return fitting_; }
  const Progress& progress() const override { return progress_; }
  bool is_last_batch() const override { return is_last_batch_; }
  std::optional<int64_t> num_training_batches() const override;
  std::vector<std::optional<int64_t>> num_eval_batches() const override;
  std::optional<int64_t> estimated_stepping_batches() const override;
  const TrainerPlan& plan() const override { return plan_; }
  Fabric& fabric() const override { return *fabric_; }
  TrainModuleBase& module() const override { return *module_; }
  const std::vector<Optimizer>& optimizers() const override { return optimizers_; }
  std::vector<SchedulerConfig>& schedulers() override { return schedulers_; }
  const std::vector<CallbackRef>& callbacks() const override { return callbacks_; }
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return loggers_; }
  std::filesystem::path log_dir() const override;
  std::optional<double> metric(std::string_view name) override;
  MetricMap callback_metrics() override;
  MetricMap logged_metrics() override;
  MetricMap progress_bar_metrics() override;
  void log(std::string_view name, const Tensor& value, const LogOptions& options) override;
  void log(std::string_view name, double value, const LogOptions& options) override;
  void log_row(const Metrics& metrics) override;
  bool row_is_due() const override;
  void stop(std::string_view reason) override;
  void request_stop(std::string_view reason) override;
  bool should_stop() const override { return should_stop_; }
  void save_checkpoint(const std::filesystem::path& path, bool weights_only) override;
  void save_checkpoint(const std::filesystem::path& path, bool weights_only, std::function<void()> then) override;
  const std::filesystem::path& ckpt_path() const override { return ckpt_path_; }
  int64_t accumulate_grad_batches() const override { return accumulate_; }
  void set_accumulate_grad_batches(int64_t k) override;
  void set_max_epochs(int64_t epochs) override { plan_.max_epochs = epochs; }
  void set_forward_only(bool enabled) override { forward_only_ = enabled; }
  bool run_trial(const Trial& trial) override;
  std::optional<int64_t> train_batch_size() const override;
  void set_train_batch_size(int64_t batch_size) override;
  void print_line(const std::string& line) override;

  // What the loops use.
  template <class F>
  void call(Hook hook, F&& f) {
    for (size_t i = 0; i < listeners_.size(); ++i) call_one(hook, i, f);
  }
  template <class F>
  void call_one(Hook hook, size_t index, F&& f) {
    const auto outer = doing_;
    site_ = &hook_site(hook);
    doing_ = {site_->hook, listeners_[index]};
    const auto span = callback_span(hook, index);
    f(*listeners_[index]);
    doing_ = outer;
  }
  /// The hook of the callbacks, then the module's.
  template <class F, class G>
  void call(Hook hook, F&& on_callback, G&& on_module) {
    call(hook, on_callback);
    call_module(hook, on_module);
  }
  template <class G>
  void call_module(Hook hook, G&& on_module) {
    const auto outer = doing_;
    site_ = &hook_site(hook);
    doing_ = {site_->hook};
    const Span span(profiler_.get(), module_actions_[static_cast<size_t>(hook)]);
    on_module();
    doing_ = outer;
  }
  /// Something that takes time and is no hook.
  enum class Action {
    kEpoch,
    kBatch,
    kNextTrainBatch,
    kNextEvalBatch,
    kTransfer,
    kTrainingStep,
    kValidationStep,
    kTestStep,
    kPredictStep,
    kZeroGrad,
    kBackward,
    kOptimizerStep,
    kClip,
    kScheduler,
    kSaveCheckpoint,
    kValidation,
    kCount
  };
  Span span(Action action) { return Span(profiler_.get(), actions_[static_cast<size_t>(action)]); }
  Span callback_span(Hook hook, size_t index) {
    if (!profiler_) return Span(nullptr, ActionId{});
    const auto& action = callback_actions_[static_cast<size_t>(hook)][index];
    return Span(action ? profiler_.get() : nullptr, action.value_or(ActionId{}));
  }
  void set_site(const LogSite& site) {
    site_ = &site;
    doing_ = {&site == &kNoLogging ? nullptr : site.hook};
  }
  /// What an error from now on came out of, in words of the module's hooks; it has no end, another one replaces it.
  void set_doing(const char* what) { doing_ = {what}; }

  /// A step of the module under the care of the strategy, in the run's precision.
  template <class F>
  StepOutput run_step(F&& step);
  void backward(const Tensor& loss);
  void manual_backward(const Tensor& loss);
  void clip_gradients(Optimizer& optimizer, double clip_val, std::string_view algorithm);

  /// The batch that comes next, on its device; null at the end.
  void* next_batch(BatchSource& source, const StepInfo& at);

  void load_train_data();
  void load_eval_data(Stage stage);
  StageData& eval_data(Stage stage);
  const Limit& eval_limit(Stage stage) const;
  MetricLog& metric_log(Stage stage);

  bool steps_are_done() const { return plan_.max_steps >= 0 && progress_.global_step >= plan_.max_steps; }
  bool can_stop_early() const;
  /// Between two batches: a signal, or a rank that wants to stop, is seen here by all of them.
  void check_stop_requests();
  /// After fit, validate, test or predict: a signal that came too late for the loops. `together`: every rank calls.
  void check_late_signal(bool together);
  /// Writes what was asked for during the batch.
  void write_waiting_checkpoints();
  void log_step_row();
  void log_epoch_row();
  void log_value(std::string_view name, const LoggedValue& value, const LogOptions& options);
  void send_row(const MetricMap& metrics, int64_t step, bool with_epoch = true);
  int64_t row_step() const;
  void publish(bool epoch);

  // State in checkpoints (run_state.cpp).
  StateDict checkpoint(bool weights_only);
  void write_checkpoint(const std::filesystem::path& path, bool weights_only);
  std::filesystem::path find_checkpoint(const std::string& asked, bool fit);
  void restore_model(bool fit);
  void restore_training();
  void restore_position();
  std::filesystem::path hpc_path(int64_t number) const;

  TrainerPlan plan_;
  TrainerOptions asked_;
  std::unique_ptr<Fabric> fabric_;
  TrainModuleBase* module_ = nullptr;
  DataModuleBase* data_ = nullptr;
  std::optional<FabricModule<std::shared_ptr<torch::nn::Module>>> wrapped_;
  std::vector<Optimizer> optimizers_;
  std::vector<SchedulerConfig> schedulers_;
  std::vector<CallbackRef> base_callbacks_, callbacks_;
  /// The callbacks of the run under way, in order.
  std::vector<Callback*> listeners_;
  std::vector<std::shared_ptr<Logger>> loggers_;
  /// The same on every rank while a run is under way.
  std::filesystem::path log_dir_;

  std::shared_ptr<Profiler> profiler_;
  std::array<ActionId, static_cast<size_t>(Action::kCount)> actions_{};
  std::array<ActionId, static_cast<size_t>(Hook::kCount)> module_actions_{};
  std::array<std::vector<std::optional<ActionId>>, static_cast<size_t>(Hook::kCount)> callback_actions_;
  Advice advice_;

  Stage stage_ = Stage::kIdle;
  bool fitting_ = false;
  Progress progress_;
  bool is_last_batch_ = false;
  bool inside_batch_ = false;
  /// The batch under way, or the last one, made an optimizer step.
  bool batch_stepped_ = true;
  /// Gradients of a window of accumulation are waiting for its other batches: no checkpoint can be written.
  bool window_open_ = false;
  int64_t accumulate_ = 1;
  int64_t max_epochs_ = -1;  // as resolved; a callback may change the plan's during a run
  bool forward_only_ = false;
  bool should_stop_ = false;
  bool stop_requested_ = false;
  StageData train_data_, val_data_, test_data_, predict_data_;
  /// As the user handed them over, before limits and ranks.
  AnyLoaders asked_train_, asked_val_;
  int64_t val_every_ = 0;  // batches; 0: by other means
  std::chrono::steady_clock::time_point last_validation_;
  /// Batches until the ranks ask one another next, in training and in evaluation, which go at their own pace.
  struct Vote {
    int64_t batches_left = 1, period = 1;
    std::chrono::steady_clock::time_point last;
  };
  Vote train_vote_, eval_vote_;

  const LogSite* site_ = &kNoLogging;
  /// What runs, and whose hook it is: stays as it was when an exception passes.
  struct Doing {
    const char* what = nullptr;
    const Callback* callback = nullptr;
  };
  Doing doing_;
  /// The batch that is fetched or worked on.
  std::optional<StepInfo> at_;
  LossWatch loss_watch_;
  MetricLog train_log_{true}, val_log_{false}, test_log_{false};
  MetricLog::Published published_;
  AnyBatch batch_;
  int64_t dataloader_idx_ = -1;
  bool in_epoch_end_ = false;

  std::filesystem::path ckpt_path_;
  std::optional<StateDict> loaded_;
  /// What going on from a checkpoint changes, as it was; there until the run has taken all of it.
  struct BeforeRestore;
  std::shared_ptr<BeforeRestore> before_restore_;
  void put_back_restored() noexcept;
  /// Runs a step of restoring; with several ranks all go on, or all throw.
  void restore_together(const std::function<void()>& step);
  void log_hparams();
  /// Loggers go on in the folder that the checkpoint names, where it is one of theirs.
  void reopen_logs();
  /// On rank 0: the logs that the checkpoint names are there.
  bool has_old_logs_ = false;
  struct Waiting {
    std::filesystem::path path;
    bool weights_only;
    std::function<void()> then;
  };
  std::vector<Waiting> waiting_;
  /// The random generators, and the loggers' positions where it has written rows, before the validation under way.
  std::optional<StateDict> rng_before_validation_;
  std::optional<StateList> logs_before_validation_;
  StateList log_positions() const;
  StateDict rng_state() const;
  std::optional<SignalFlags> signals_;

 private:
  /// What validate, test and predict begin with; false: their limit is 0, and there is nothing to run.
  bool begin_evaluation(Stage stage, TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                        const std::string& ckpt_path);
  void begin(TrainModuleBase& module, DataModuleBase* data, std::string_view stage, const std::string& ckpt_path);
  void collect_callbacks();
  void collect_loggers();
  void make_optimizers();
  void print_plan();
  void register_actions(std::string_view stage);
  void end(std::string_view stage, std::string_view status);
  void fail(std::string_view stage, const std::exception_ptr& error);
  void rewind_batch();
  /// "training_step, epoch 0, batch 3" for the exception that is being handled; empty outside of hooks and steps.
  std::string where() const;
  /// The exception that is being handled, with where it happened: in its own line when it is torch's or Levin's, else
  /// in a line of the log, since its type belongs to whoever threw it.
  std::exception_ptr located(std::string_view stage) const;
  AnyLoaders prepared(const AnyLoaders& loaders, bool training);
  [[noreturn]] void end_by_signal(int signal);
};

// The loops (loops/).
void run_fit_loop(Run& run);
/// One pass over the loaders of a stage; at most `limit` batches of each when it is not negative.
void run_eval_loop(Run& run, Stage stage, int64_t limit = -1);
std::vector<std::vector<StepOutput>> run_predict_loop(Run& run, bool keep);
/// Whether the batch made an optimizer step.
bool run_training_batch(Run& run, void* batch, int64_t batch_idx, StepOutput& output);
void step_schedulers(Run& run, std::string_view interval, bool plateau);

template <class F>
StepOutput Run::run_step(F&& step) {
  auto& around = wrapped_->setup_call();
  if (around.plain) [[likely]]
    return step();
  StepOutput output;
  {
    CallScope scope(around);
    output = step();
    scope.leave();
  }
  if (!output.loss.defined() || !at::GradMode::is_enabled()) return output;
  std::vector<Tensor*> outputs{&output.loss};
  finish_call(around, outputs);
  return output;
}

}  // namespace levin::detail
