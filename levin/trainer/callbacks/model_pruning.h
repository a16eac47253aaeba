#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/trainer/callback.h"

namespace levin {

class TrainModuleBase;

/// How much to prune: a fraction (`0.5`) of what is left, a number of weights (`1000`), or a function of the epoch that
/// returns a fraction.
using PruningAmount = std::variant<double, int64_t, std::function<double(int64_t epoch)>>;
/// Yes, no, or a function of the epoch.
using EpochCondition = std::variant<bool, std::function<bool(int64_t epoch)>>;

struct ModelPruningOptions {
  /// "l1_unstructured": the smallest weights; "random_unstructured": any.
  std::string pruning_fn = "l1_unstructured";
  /// Parameters by name ("encoder.0.weight"). Defaults to all whose last name is one of parameter_names.
  std::vector<std::string> parameters_to_prune = {};
  std::vector<std::string> parameter_names = {"weight", "bias"};
  /// Choose among all weights together; otherwise in each parameter separately.
  bool use_global_unstructured = true;
  PruningAmount amount = 0.5;
  EpochCondition apply_pruning = true;
  /// Forget what was pruned when training ends: the zeros stay, but another fit may change them.
  bool make_pruning_permanent = true;
  /// After pruning, what is left goes back to the values it had before training.
  EpochCondition use_lottery_ticket_hypothesis = true;
  /// 1: say the sparsity whenever it changes; 2: of each parameter, too.
  int verbose = 0;
  /// Prune at the end of a training epoch; otherwise at the end of validation.
  bool prune_on_train_epoch_end = true;
};

/// Sets weights to zero along the way and keeps them there: gradients and weights are masked around each optimizer
/// step. Logs "sparsity", the fraction of the chosen parameters that is pruned. What is pruned, and the first weights
/// for the lottery ticket, are in checkpoints.
class ModelPruning : public Callback {
 public:
  explicit ModelPruning(ModelPruningOptions options = {});

  void on_fit_start(TrainerContext& run) override;
  void on_before_optimizer_step(TrainerContext& run, Optimizer& optimizer) override;
  void on_train_batch_end(TrainerContext& run, const StepOutput& output, const AnyBatch& batch,
                          int64_t batch_idx) override;
  void on_train_epoch_end(TrainerContext& run) override;
  void on_validation_epoch_end(TrainerContext& run) override;
  void on_train_end(TrainerContext& run) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override { loaded_ = state; }

  /// Pruned weights as a fraction of all that were chosen.
  double sparsity() const { return sparsity_; }

 private:
  struct Target {
    std::string name;
    Tensor parameter;
    /// Before training; undefined when it is not needed.
    Tensor original;
    /// Of the parameter's dtype, ones and zeros; undefined until something was pruned.
    Tensor mask;
  };

  void choose_targets(TrainModuleBase& module);
  void prune(TrainerContext& run);
  Tensor lowest(const Tensor& values, int64_t epoch) const;
  void apply_masks();
  void report(TrainerContext& run, const std::vector<int64_t>& before) const;

  ModelPruningOptions options_;
  std::vector<Target> targets_;
  bool has_masks_ = false;
  double sparsity_ = 0;
  int64_t masked_at_step_ = 0;
  StateDict loaded_;
};

}  // namespace levin
