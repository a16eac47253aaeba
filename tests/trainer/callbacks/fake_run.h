#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/temporary_folder.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin::testing {

/// The names in a folder that are not hidden.
inline std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (!it->path().filename().string().starts_with('.')) names.insert(it->path().filename().string());
  return names;
}

/// A run without data and without weights, in which a test says what happens: for the callbacks' own decisions.
class FakeRun : public TrainerContext, public RunMetrics, public Tuning {
 public:
  explicit FakeRun(std::vector<CallbackRef> callbacks, std::filesystem::path root = {})
      : callbacks_(std::move(callbacks)), fabric_({.accelerator = "cpu", .devices = 1}) {
    plan_.root_dir = std::move(root);
    plan_.sanity_steps = 0;
  }

  // What the test sets.
  TrainerPlan plan_;
  Progress progress_;
  std::map<std::string, double> metrics_;
  MetricMap bar_metrics_;
  std::vector<std::optional<int64_t>> eval_batches_;
  std::optional<int64_t> train_batches_;
  Stage stage_ = Stage::kTrain;
  bool fitting_ = true;
  std::filesystem::path ckpt_path_;
  std::vector<std::shared_ptr<Logger>> loggers_;
  std::vector<std::string> lines_;
  std::string stop_reason_;
  TrainModuleBase* module_ = nullptr;

  template <class... P, class... A>
  void each(void (Callback::*hook)(P...), A&&... args) {
    for (auto& callback : callbacks_) (callback.get().get()->*hook)(args...);
  }

  /// Batches, one optimizer step each, with validation after every `validate_every` of them (0: never). The functions
  /// set the metrics.
  void fit(int64_t epochs, int64_t batches, int64_t validate_every, const std::function<void()>& on_batch = {},
           const std::function<void()>& on_validation = {}, const std::function<void()>& on_epoch = {}) {
    train_batches_ = batches;
    if (validate_every > 0) eval_batches_ = {1};
    start();
    for (; progress_.epoch < epochs && !should_stop(); ++progress_.epoch) {
      each(&Callback::on_train_epoch_start, *this);
      for (progress_.batch = 0; progress_.batch < batches;) {
        in_batch_ = true;
        ++progress_.global_step;
        if (on_batch) on_batch();
        each(&Callback::on_train_batch_end, *this, StepOutput(), AnyBatch(), progress_.batch);
        ++progress_.batch;
        ++progress_.total_batches;
        in_batch_ = false;
        flush();
        if (validate_every > 0 && progress_.batch % validate_every == 0) validate(on_validation);
        if (should_stop()) break;
      }
      if (on_epoch) on_epoch();
      each(&Callback::on_train_epoch_end, *this);
    }
    each(&Callback::on_train_end, *this);
    each(&Callback::teardown, *this, std::string_view("fit"));
  }
  void start() {
    each(&Callback::setup, *this, std::string_view("fit"));
    if (!ckpt_path_.empty()) {
      const auto state = load_checkpoint(ckpt_path_);
      progress_.global_step = state.at("global_step").to_int();
      progress_.epoch = state.at("epoch").to_int();
      for (auto& callback : callbacks_)
        if (const auto* found = state.at("callbacks").to_dict().find(callback->state_key()))
          callback->load_state_dict(found->to_dict());
    }
    each(&Callback::on_fit_start, *this);
    each(&Callback::on_train_start, *this);
  }
  void validate(const std::function<void()>& on_validation = {}) {
    stage_ = Stage::kValidate;
    each(&Callback::on_validation_start, *this);
    if (on_validation) on_validation();
    progress_.validated_at = progress_.total_batches;
    each(&Callback::on_validation_end, *this);
    stage_ = Stage::kTrain;
  }
  void flush() {
    auto due = std::exchange(due_, {});
    for (auto& write : due) write();
  }

  Stage stage() const override { return stage_; }
  bool fitting() const override { return fitting_; }
  const Progress& progress() const override { return progress_; }
  bool is_last_batch() const override { return false; }
  std::optional<int64_t> num_training_batches() const override { return train_batches_; }
  std::vector<std::optional<int64_t>> num_eval_batches() const override { return eval_batches_; }
  std::optional<int64_t> estimated_stepping_batches() const override { return {}; }
  const TrainerPlan& plan() const override { return plan_; }
  Fabric& fabric() const override { return fabric_; }
  TrainModuleBase& module() const override { return *module_; }
  const std::vector<Optimizer>& optimizers() const override { return optimizers_; }
  std::vector<SchedulerConfig>& schedulers() override { return schedulers_; }
  const std::vector<CallbackRef>& callbacks() const override { return callbacks_; }
  const std::vector<std::shared_ptr<Logger>>& loggers() const override { return loggers_; }
  std::filesystem::path log_dir() const override {
    return loggers_.empty() ? plan_.root_dir : loggers_.front()->log_dir();
  }
  std::optional<double> metric(std::string_view name) override {
    const auto found = metrics_.find(std::string(name));
    return found == metrics_.end() ? std::nullopt : std::optional(found->second);
  }
  RunMetrics& metrics() override { return *this; }
  MetricMap callback_metrics() override { return {metrics_.begin(), metrics_.end()}; }
  MetricMap logged_metrics() override { return {}; }
  MetricMap progress_bar_metrics() override { return bar_metrics_; }
  void log(std::string_view, const Tensor&, const LogOptions& = {}) override {}
  void log(std::string_view, double, const LogOptions& = {}) override {}
  void log_row(const levin::Metrics&) override {}
  bool row_is_due() const override { return false; }
  void stop(std::string_view reason) override { stop_reason_ = reason; }
  void request_stop(std::string_view reason) override { stop_reason_ = reason; }
  bool should_stop() const override { return !stop_reason_.empty(); }
  void save_checkpoint(const std::filesystem::path& path, bool = false, std::function<void()> then = {}) override {
    auto write = [this, path, then] {
      StateDict states;
      for (auto& callback : callbacks_)
        if (auto state = callback->state_dict(); !state.empty()) states[callback->state_key()] = state;
      StateDict checkpoint{{"epoch", progress_.epoch}, {"global_step", progress_.global_step}, {"callbacks", states}};
      levin::save_checkpoint(path, checkpoint);
      if (then) then();
    };
    in_batch_ ? due_.push_back(write) : write();
  }
  const std::filesystem::path& ckpt_path() const override { return ckpt_path_; }
  Tuning& tuning() override { return *this; }
  void set_accumulate_grad_batches(int64_t k) override { plan_.accumulate = k; }
  void set_max_epochs(int64_t) override {}
  void set_forward_only(bool) override {}
  bool run_trial(const Trial&) override { return false; }
  std::optional<int64_t> train_batch_size() const override { return {}; }
  void set_train_batch_size(int64_t) override {}
  void print_line(const std::string& line) override { lines_.push_back(line); }
  void call_model(const std::function<void()>& call) override { call(); }

 private:
  std::vector<CallbackRef> callbacks_;
  mutable Fabric fabric_;
  std::vector<Optimizer> optimizers_;
  std::vector<SchedulerConfig> schedulers_;
  bool in_batch_ = false;
  std::vector<std::function<void()>> due_;
};

}  // namespace levin::testing
