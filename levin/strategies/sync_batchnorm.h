#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include "levin/distributed/collective.h"

namespace levin {

/// Batch norm over the batches of all ranks of a group together, as one process would do it on the whole: forward,
/// gradients and running statistics. Ranks may bring different numbers of samples, also none. `x` is [N, C, ...]; the
/// other tensors are [C] or undefined. When not training this is the plain one and communicates nothing. Every rank
/// must call.
Tensor sync_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                       const Tensor& running_var, double momentum, double eps, bool training, Collective& group);

struct SyncBatchNormOptions {
  double eps = 1e-5;
  /// Weight of a new batch in the running statistics; none: they are plain averages over all batches.
  std::optional<double> momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
};

/// Batch norm for 2 to 5 dimensions that is synchronized over a group while it trains. Parameters and buffers are named
/// as in torch::nn::BatchNorm, so states go from one to the other. Without a group it is the plain one.
///
///     SyncBatchNorm norm(64, group);
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  explicit SyncBatchNormImpl(int64_t num_features, std::shared_ptr<Collective> group = nullptr,
                             SyncBatchNormOptions options = {});

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  Tensor forward(const Tensor& x);
  void set_group(std::shared_ptr<Collective> group) { group_ = std::move(group); }
  /// See SyncBatchNormOptions.
  std::optional<double>& momentum() { return options_.momentum; }

  Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 private:
  int64_t num_features_;
  std::shared_ptr<Collective> group_;
  SyncBatchNormOptions options_;
};
TORCH_MODULE(SyncBatchNorm);

/// While it lives, every batch norm that trains on this thread, or in a backward that this thread starts, is
/// synchronized over the group: torch's own layers too, whose forward cannot be overridden. It stands in for
/// `aten::batch_norm` in the dispatcher; nothing else is touched. Scopes may end in any order; the newest counts.
/// Strategies use it for `sync_batchnorm`: around forward, and around backward for units that compute again there.
class SyncBatchNormScope {
 public:
  explicit SyncBatchNormScope(Collective& group);
  ~SyncBatchNormScope();
  SyncBatchNormScope(const SyncBatchNormScope&) = delete;
  SyncBatchNormScope& operator=(const SyncBatchNormScope&) = delete;

 private:
  Collective* group_;
};

}  // namespace levin
