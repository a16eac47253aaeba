#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
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
  /// A checkpoint to go on from: a path, "last" (the newest there is; none is no error), "best", or "hpc" (what was
  /// saved when a signal ended the run). Empty: start anew, unless a cluster has restarted the job.
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

/// Trains a TrainModule: loops, logs, checkpoints, devices and ranks are its matter.
///
///     levin::Trainer trainer({.devices = 2, .precision = "bf16-mixed", .max_epochs = 10});
///     trainer.fit(classifier, train_loader, val_loader);
///     trainer.test(classifier, test_loader);
class Trainer {
 public:
  Trainer();
  /// Refuses bad values, in one line, before anything starts.
  explicit Trainer(TrainerOptions options);
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Starts the other ranks when `devices` asks for several, and joins them. fit and the others do it by themselves;
  /// called first thing, nothing before it runs twice. See Fabric::launch.
  void launch();
  void launch(const Args& args);

  /// Trains, from the start in every call. Loaders may be left out when the module has its own.
  template <class B>
  void fit(TrainModuleOf<B>& module, std::type_identity_t<Loaders<B>> train = {},
           std::type_identity_t<Loaders<B>> val = {}, const FitOptions& options = {}) {
    run_fit(module, nullptr, train.sources(), val.sources(), options);
  }
  template <class B>
  void fit(TrainModuleOf<B>& module, DataModuleOf<B>& data, const FitOptions& options = {}) {
    run_fit(module, &data, {}, {}, options);
  }

  /// One pass over validation or test data; the metrics of each loader.
  template <class B>
  std::vector<EvaluationResult> validate(TrainModuleOf<B>& module, std::type_identity_t<Loaders<B>> loaders = {},
                                         const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kValidate, module, nullptr, loaders.sources(), options);
  }
  template <class B>
  std::vector<EvaluationResult> validate(TrainModuleOf<B>& module, DataModuleOf<B>& data,
                                         const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kValidate, module, &data, {}, options);
  }
  template <class B>
  std::vector<EvaluationResult> test(TrainModuleOf<B>& module, std::type_identity_t<Loaders<B>> loaders = {},
                                     const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kTest, module, nullptr, loaders.sources(), options);
  }
  template <class B>
  std::vector<EvaluationResult> test(TrainModuleOf<B>& module, DataModuleOf<B>& data,
                                     const EvaluateOptions& options = {}) {
    return run_evaluate(Stage::kTest, module, &data, {}, options);
  }

  /// What predict_step returns for every batch, by loader. This rank's part of the data.
  template <class B>
  std::vector<std::vector<StepOutput>> predict(TrainModuleOf<B>& module, std::type_identity_t<Loaders<B>> loaders = {},
                                               const PredictOptions& options = {}) {
    return run_predict(module, nullptr, loaders.sources(), options);
  }
  template <class B>
  std::vector<std::vector<StepOutput>> predict(TrainModuleOf<B>& module, DataModuleOf<B>& data,
                                               const PredictOptions& options = {}) {
    return run_predict(module, &data, {}, options);
  }

  // A shared_ptr to a module does as well as the module.
  template <std::derived_from<TrainModuleBase> T, class... Args>
  void fit(const std::shared_ptr<T>& module, Args&&... args) {
    fit(*module, std::forward<Args>(args)...);
  }
  template <std::derived_from<TrainModuleBase> T, class... Args>
  auto validate(const std::shared_ptr<T>& module, Args&&... args) {
    return validate(*module, std::forward<Args>(args)...);
  }
  template <std::derived_from<TrainModuleBase> T, class... Args>
  auto test(const std::shared_ptr<T>& module, Args&&... args) {
    return test(*module, std::forward<Args>(args)...);
  }
  template <std::derived_from<TrainModuleBase> T, class... Args>
  auto predict(const std::shared_ptr<T>& module, Args&&... args) {
    return predict(*module, std::forward<Args>(args)...);
  }

  /// A checkpoint of the last run. Every rank must call.
  void save_checkpoint(const std::filesystem::path& path, bool weights_only = false);

  /// Of the last run.
  int64_t current_epoch() const;
  int64_t global_step() const;
  const Progress& progress() const;
  std::map<std::string, std::variant<double, Tensor>> callback_metrics() const;
  /// A metric that was logged, by its name; nothing when there is none.
  std::optional<double> metric(std::string_view name) const;
  std::filesystem::path log_dir() const;
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

 private:
  void run_fit(TrainModuleBase& module, DataModuleBase* data, detail::AnyLoaders train, detail::AnyLoaders val,
               const FitOptions& options);
  std::vector<EvaluationResult> run_evaluate(Stage stage, TrainModuleBase& module, DataModuleBase* data,
                                             detail::AnyLoaders loaders, const EvaluateOptions& options);
  std::vector<std::vector<StepOutput>> run_predict(TrainModuleBase& module, DataModuleBase* data,
                                                   detail::AnyLoaders loaders, const PredictOptions& options);

  std::unique_ptr<detail::Run> run_;
};

}  // namespace levin
