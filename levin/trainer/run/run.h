#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/trainer/advice.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/loss_watch.h"
#include "levin/trainer/run/checkpointing.h"
#include "levin/trainer/run/compiled.h"
#include "levin/trainer/run/context.h"
#include "levin/trainer/run/finite_guard.h"
#include "levin/trainer/run/hook_table.h"
#include "levin/trainer/run/logging.h"
#include "levin/trainer/run/loop_state.h"
#include "levin/trainer/run/parts.h"
#include "levin/trainer/run/stage_data.h"
#include "levin/trainer/run/stopping.h"
#include "levin/trainer/signals.h"
#include "levin/trainer/train_module.h"
#include "levin/trainer/trainer.h"

namespace levin::detail {

/// What is trained or evaluated. The module and the data module are the user's.
struct RunModel {
  TrainModuleBase* module = nullptr;
  DataModuleBase* data = nullptr;
  std::optional<FabricModule<std::shared_ptr<torch::nn::Module>>> wrapped = {};
  std::vector<Optimizer> optimizers = {};
  std::vector<SchedulerConfig> schedulers = {};
  /// The float8 histories when the last fit ended, for checkpoints that are saved after it.
  StateDict fp8 = {};
};

/// One trainer at work: the parts that the loops share. What is done with them are functions over it: the loops
/// (loops/), and those in the part's own header.
class Run {
 public:
  explicit Run(TrainerOptions asked);

  // The four jobs (jobs.cpp).
  void fit(TrainModuleBase& module, DataModuleBase* data, AnyLoaders train, AnyLoaders val, const FitOptions& options);
  std::vector<EvaluationResult> evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                                         const EvaluateOptions& options);
  std::vector<std::vector<StepOutput>> predict(TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                                               const PredictOptions& options);
  void launch(const Args* args);

  /// Of this run: tuners may change it.
  TrainerPlan plan;
  std::unique_ptr<Fabric> fabric;
  RunModel model;
  LoopState state;
  RunData data;
  HookTable hooks;
  LoggedMetrics metrics;
  RunLogs logs;
  Checkpoints checkpoints;
  std::optional<SignalFlags> signals;
  Advice advice;
  LossWatch loss_watch;
  FiniteGuard finite;
  /// Made when the first step is to be compiled.
  std::unique_ptr<CompiledSteps> compiled;
  /// While a step is computed in micro-batches.
  PartLogs* parts = nullptr;
  /// Steps of a tuner run, which are not compiled.
  bool in_trial = false;
  /// The Trainer is gone, perhaps in another thread.
  std::atomic<bool> abandoned = false;
  /// What callbacks and modules see of all this.
  RunContext context{*this};

 private:
  void begin(TrainModuleBase& module, DataModuleBase* data, std::string_view stage, const std::string& ckpt_path);
  /// What validate, test and predict begin with; false: their limit is 0, and there is nothing to run.
  bool begin_evaluation(Stage stage, TrainModuleBase& module, DataModuleBase* data, AnyLoaders loaders,
                        const std::string& ckpt_path);
  void make_optimizers();
  void print_plan() const;
  void end(std::string_view stage, std::string_view status);
  void fail(std::string_view stage, const std::exception_ptr& error);
  /// The run is over, well or not: the module and the signals are let go of.
  void release();
  void rewind_batch();

  /// As resolved: every run begins with it.
  TrainerPlan resolved_;
};

/// "training_step, epoch 0, batch 3" is where the exception that is being handled came from (errors.cpp). It is in the
/// exception's own line when it is torch's or Levin's, else in a line of the log, since its type belongs to whoever
/// threw it.
std::exception_ptr located(const Run& run, std::string_view stage);

}  // namespace levin::detail
