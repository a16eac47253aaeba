#pragma once

#include <cstdint>
#include <map>

#include "levin/trainer/callback.h"

namespace levin {

struct GradientAccumulationSchedulerOptions {
  /// Epochs, from 0 on, and over how many batches each accumulates; until the next that is named.
  std::map<int64_t, int64_t> scheduling = {};
};

/// Changes over how many batches gradients are accumulated, by epoch:
///
///     levin::GradientAccumulationScheduler({.scheduling = {{0, 8}, {4, 2}}})   // 8 in epochs 0 to 3, 2 from epoch 4
///     on
///
/// Before the first epoch that is named it is 1. Trainer's accumulate_grad_batches must be left at 1, and optimization
/// must be automatic.
class GradientAccumulationScheduler : public Callback {
 public:
  explicit GradientAccumulationScheduler(GradientAccumulationSchedulerOptions options);

  int64_t accumulate_grad_batches(int64_t epoch) const;
  /// Optimizer steps of the first `epochs` epochs, of `batches` batches each.
  int64_t stepping_batches(int64_t epochs, int64_t batches) const;

  void on_fit_start(TrainerContext& run) override;
  void on_train_start(TrainerContext& run) override;
  void on_train_epoch_start(TrainerContext& run) override;

 private:
  std::map<int64_t, int64_t> scheduling_;
};

}  // namespace levin
