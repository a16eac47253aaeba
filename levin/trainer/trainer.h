#pragma once

#include <concepts>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "levin/core/main.h"
#include "levin/trainer/context.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/options.h"
#include "levin/trainer/train_module.h"

namespace levin {

namespace detail {
class Run;
}  // namespace detail

struct FitOptions {
  /// A checkpoint to resume from: a path, "last" (the newest there is; none is no error), "best", or "hpc" (what was
  /// saved when a signal ended the run). Empty: start from scratch, unless a cluster has restarted the job.
  std::string ckpt_path = {};
};

struct EvaluateOptions {
  /// Weights to load before: a path, "last" or "best". Empty: those that the module has.
  std::string ckpt_path = {};
  /// Print the metrics as a table.
  bool verbose = true;
};

struct PredictOptions {
  std::string ckpt_path = {};
  /// false: predictions reach the callbacks alone (a PredictionWriter) and are not kept.
  bool return_predictions = true;
};

/// The metrics of one evaluation loader.
using EvaluationResult = std::map<std::string, double>;

/// What a trainer knows of its last run.
class LastRun {
 public:
  int64_t current_epoch() const;
  int64_t global_step() const;
  const Progress& progress() const;
  MetricMap callback_metrics() const;
  /// A metric that was logged, by its name; nothing when there is none.
  std::optional<double> metric(std::string_view name) const;
  std::filesystem::path log_dir() const;
  /// A checkpoint of it. Every rank must call.
  void save_checkpoint(const std::filesystem::path& path, bool weights_only = false);
  /// The callback of that class, the trainer's own among them; null when there is none.
  template <std::derived_from<Callback> C>
  C* callback() const {
    for (const auto& ref : callbacks())
      if (auto* c = dynamic_cast<C*>(ref.get().get())) return c;
    return nullptr;
  }
  const std::vector<CallbackRef>& callbacks() const;
  const std::vector<std::shared_ptr<Logger>>& loggers() const;
  const TrainerPlan& plan() const;
  Fabric& fabric() const;
  bool is_global_zero() const { return fabric().is_global_zero(); }

 protected:
  explicit LastRun(TrainerOptions options);
  /// During a fit, from its own step or another thread: the fit ends after the batch under way, with a warning. The
  /// module and the data must still live as long as the fit.
  ~LastRun();
  LastRun(const LastRun&) = delete;
  LastRun& operator=(const LastRun&) = delete;

  /// Shared with the call that runs, which may outlive the trainer.
  std::shared_ptr<detail::Run> run_;
};

namespace detail {

/// A TrainModule, or a shared_ptr to one.
template <std::derived_from<TrainModuleBase> T>
T& module_of(T& module) {
  // What stands behind a reference to a base may override any of them.
  if (typeid(module) == typeid(T)) module.note_overridden_in_step(overridden_in_step<T>());
  return module;
}
template <std::derived_from<TrainModuleBase> T>
T& module_of(const std::shared_ptr<T>& module) {
  return module_of(*module);
}
template <class M>
using BatchTypeOf = typename std::remove_cvref_t<decltype(module_of(std::declval<M>()))>::BatchType;

}  // namespace detail

/// Trains a TrainModule: loops, logs, checkpoints, devices and ranks are its matter. A module may be a shared_ptr too.
///
///     levin::Trainer trainer({.devices = 2, .precision = "bf16-mixed", .max_epochs = 10});
///     trainer.fit(classifier, train_loader, val_loader);
///     trainer.test(classifier, test_loader);
class Trainer : public LastRun {
 public:
  /// Refuses bad values, in one line, before anything starts.
  explicit Trainer(TrainerOptions options = {}) : LastRun(std::move(options)) {}

  /// Starts the other ranks when `devices` asks for several, and joins them. fit and the others do it automatically;
  /// called first thing, nothing before it runs twice. See Fabric::launch.
  void launch();
  void launch(const Args& args);

  /// Trains, from the start in every call. Loaders may be left out when the module has its own.
  template <class M, class B = detail::BatchTypeOf<M>>
  void fit(M&& module, std::type_identity_t<Loaders<B>> train = {}, std::type_identity_t<Loaders<B>> val = {},
           const FitOptions& options = {}) {
    run_fit(detail::module_of(module), nullptr, train.sources(), val.sources(), options);
  }
  template <class M, class B = detail::BatchTypeOf<M>>
  void fit(M&& module, DataModuleOf<std::type_identity_t<B>>& data, const FitOptions& options = {}) {
    run_fit(detail::module_of(module), &data, {}, {}, options);
  }

  /// One pass over validation or test data; the metrics of each loader.
  template <class M, class B = detail::BatchTypeOf<M>>
  std::vector<EvaluationResult> validate(M&& module, std::type_identity_t<Loaders<B>> loaders = {},
                                         const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kValidate, detail::module_of(module), nullptr, loaders.sources(), options);
  }
  template <class M, class B = detail::BatchTypeOf<M>>
  std::vector<EvaluationResult> validate(M&& module, DataModuleOf<std::type_identity_t<B>>& data,
                                         const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kValidate, detail::module_of(module), &data, {}, options);
  }
  template <class M, class B = detail::BatchTypeOf<M>>
  std::vector<EvaluationResult> test(M&& module, std::type_identity_t<Loaders<B>> loaders = {},
                                     const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kTest, detail::module_of(module), nullptr, loaders.sources(), options);
  }
  template <class M, class B = detail::BatchTypeOf<M>>
  std::vector<EvaluationResult> test(M&& module, DataModuleOf<std::type_identity_t<B>>& data,
                                     const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kTest, detail::module_of(module), &data, {}, options);
  }

  /// What predict_step returns for every batch, by loader. This rank's shard of the data.
  template <class M, class B = detail::BatchTypeOf<M>>
  std::vector<std::vector<StepOutput>> predict(M&& module, std::type_identity_t<Loaders<B>> loaders = {},
                                               const PredictOptions& options = {}) {
    return run_predict(detail::module_of(module), nullptr, loaders.sources(), options);
  }
  template <class M, class B = detail::BatchTypeOf<M>>
  std::vector<std::vector<StepOutput>> predict(M&& module, DataModuleOf<std::type_identity_t<B>>& data,
                                               const PredictOptions& options = {}) {
    return run_predict(detail::module_of(module), &data, {}, options);
  }

 private:
  void run_fit(TrainModuleBase& module, DataModuleBase* data, detail::AnyLoaders train, detail::AnyLoaders val,
               const FitOptions& options);
  std::vector<EvaluationResult> run_evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data,
                                             detail::AnyLoaders loaders, const EvaluateOptions& options);
  std::vector<std::vector<StepOutput>> run_predict(TrainModuleBase& module, DataModuleBase* data,
                                                   detail::AnyLoaders loaders, const PredictOptions& options);
};

}  // namespace levin
