#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/trainer/callback.h"

namespace levin {

class TrainModuleBase;

/// The base of callbacks that freeze a part of a module and let it train later. Override the two functions; the groups
/// of parameters that were added, and which parameters train, are in checkpoints. With several ranks the gradients of
/// what was frozen at the start are averaged here, since the strategy left them out.
///
///     struct ThawEncoder : levin::BaseFinetuning {
///       void freeze_before_training(levin::TrainModuleBase& module) override {
///       freeze(*module.named_children()["encoder"]); } void finetune_function(levin::TrainModuleBase& module, int64_t
///       epoch, levin::Optimizer& optimizer) override {
///         if (epoch == 5) unfreeze_and_add_param_group(*module.named_children()["encoder"], optimizer, {.lr = 1e-4});
///       }
///     };
class BaseFinetuning : public Callback {
 public:
  /// Before the optimizers are made. They must be given only parameters that need a gradient:
  /// `trainable_parameters(module)`.
  virtual void freeze_before_training(TrainModuleBase& module) = 0;
  /// At the start of every epoch, for each optimizer.
  virtual void finetune_function(TrainModuleBase& module, int64_t epoch, Optimizer& optimizer) = 0;

  struct Unfreeze {
    /// Of the new group. Defaults to that of the first group divided by initial_denom_lr.
    std::optional<double> lr = {};
    double initial_denom_lr = 10;
    /// Give the optimizer the parameters of batch norm too.
    bool train_bn = true;
  };
  /// Parameters need no gradient any more. Batch norm continues training with `train_bn`; otherwise its statistics stay
  /// as they are, too.
  static void freeze(torch::nn::Module& module, bool train_bn = true);
  static void make_trainable(torch::nn::Module& module);
  /// Parameters that need a gradient, each once; without those of batch norm when train_bn is false.
  static std::vector<Tensor> trainable_parameters(const torch::nn::Module& module, bool train_bn = true);
  /// Makes a module trainable, and its parameters that the optimizer does not have a new group of it.
  static void unfreeze_and_add_param_group(torch::nn::Module& module, Optimizer& optimizer, const Unfreeze& options);

  void setup(TrainerContext& run, std::string_view stage) override;
  void on_fit_start(TrainerContext& run) override;
  void on_train_epoch_start(TrainerContext& run) override;
  void on_after_backward(TrainerContext& run) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override { loaded_ = state; }

 private:
  void remember(TrainerContext& run);
  void hold_frozen_norms(TrainModuleBase& module) const;

  /// Parameters that were frozen when the strategy saw the module.
  std::vector<Tensor> late_;
  std::vector<size_t> groups_at_start_;
  std::vector<std::string> trainable_;
  StateList added_groups_;
  StateDict loaded_;
};

struct BackboneFinetuningOptions {
  /// The epoch (from 0) in which the backbone begins to train.
  int64_t unfreeze_backbone_at_epoch = 10;
  /// What the learning rate of the backbone is multiplied with at the start of each epoch after that. Defaults to 2.
  std::function<double(int64_t epoch)> lambda_func = {};
  /// The learning rate it begins with, as a fraction of the rest's.
  double backbone_initial_ratio_lr = 0.1;
  /// The learning rate it begins with; takes the place of the fraction.
  std::optional<double> backbone_initial_lr = {};
  /// Once it reaches the rest's learning rate it stays with it.
  bool should_align = true;
  /// Train the batch norm layers of the backbone too.
  bool train_bn = true;
  /// Say both learning rates at the start of each epoch.
  bool verbose = false;
  /// The child of the module that is the backbone.
  std::string backbone = "backbone";
};

/// Trains a head on a frozen backbone first, then both, the backbone with a learning rate that rises to that of the
/// rest. The module must have a child "backbone", and give its optimizer the other parameters only.
class BackboneFinetuning : public BaseFinetuning {
 public:
  explicit BackboneFinetuning(BackboneFinetuningOptions options = {});

  void freeze_before_training(TrainModuleBase& module) override;
  void finetune_function(TrainModuleBase& module, int64_t epoch, Optimizer& optimizer) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  torch::nn::Module& backbone(TrainModuleBase& module) const;

  BackboneFinetuningOptions options_;
  double backbone_lr_ = 0;
};

}  // namespace levin
