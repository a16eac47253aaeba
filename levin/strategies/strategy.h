#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "levin/checkpoint/shards.h"
#include "levin/distributed/collective.h"
#include "levin/optim/optimizer.h"
#include "levin/precision/precision.h"
#include "levin/strategies/module_sync.h"

namespace levin {

struct StateLayout;

/// What a strategy says of itself.
struct StrategyTraits {
  /// "single_device", "ddp", ...
  std::string name;
  /// How the ranks join their group.
  CollectiveOptions collective = {};
  /// It is for one process.
  bool one_process = false;
  /// Batch norm can take its statistics over the batches of all ranks (sync_batchnorm).
  bool syncs_batchnorm = false;
  /// setup_module itself moves a module to its device, converts it and materializes deferred parameters: a module that
  /// is to be sharded must not be unsharded anywhere before.
  bool places_modules = false;
};

/// Which part of the data a rank sees: that of copy `rank` of `size`.
struct DataPlace {
  int rank = 0, size = 1;
};

/// How a model is spread over processes. The only floor that knows that there are other ranks.
class Strategy {
 public:
  explicit Strategy(StrategyTraits traits) : traits_(std::move(traits)) {}
  virtual ~Strategy() = default;

  const StrategyTraits& traits() const { return traits_; }
  const std::string& name() const { return traits_.name; }

  /// Takes the group and the device of this rank; called once, by Fabric::launch. Every rank must call.
  void connect(std::shared_ptr<Collective> group, c10::Device device);
  /// An Error before connect.
  Collective& group() const;
  c10::Device device() const { return device_; }
  /// In what precision the run computes; called once, before modules are set up.
  void set_precision(const PrecisionPlan& precision) { precision_ = precision; }
  /// Batch norm of modules that are set up later takes its statistics over the batches of all ranks. An Error that
  /// names the strategy when its traits do not say that it can.
  void sync_batchnorm();
  /// Steps of modules that are set up later are captured in CUDA graphs.
  void set_captured(bool captured) { captured_ = captured; }
  /// Why no step can be captured under it; empty: it can, as far as the strategy is concerned. An Error before connect.
  virtual std::string why_not_captured() const;

  /// Ranks that have one copy of the model together see the same data. An Error before connect.
  virtual DataPlace data_place() const { return {group().rank(), group().size()}; }

  /// Which tensors are shards; null when every rank has all of everything.
  virtual ShardMap* shards() { return nullptr; }
  /// Prepares a module that is on its device, in its dtype (but see StrategyTraits::places_modules). Null when there is
  /// nothing to do around its calls. Every rank must call.
  virtual std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) = 0;
  /// Prepares an optimizer of modules that were set up; may return another one that stands in for it.
  virtual Optimizer setup_optimizer(Optimizer optimizer) { return optimizer; }
  /// The L2 (or p-) norm of all gradients together, over all ranks that hold a shard.
  virtual Tensor grad_norm(std::span<const Tensor> params, double norm_type);

  /// Ranks that must draw the same random numbers take the state of the first of them. Called when a run has put back
  /// the generators of a checkpoint, which may be of other ranks. By default every rank keeps its own. Every rank must
  /// call.
  virtual void share_random_state() {}

  /// What it does to the state of a model over that many ranks (levin/strategies/layout.h); it need not be connected.
  /// By default every rank has all state.
  virtual StateLayout layout_over(int ranks) const;
  /// The same over the ranks that it is connected to.
  StateLayout layout() const;
  /// What a training step will take under it: estimate_memory(*this, ...) of levin/memory/estimate.h.
  ///
  ///     fabric.strategy().estimate(make, forward, loss, batch, MemoryQuestion{.precision = "bf16-mixed"});
  template <class... A>
  auto estimate(A&&... args) const {
    return estimate_memory(*this, std::forward<A>(args)...);
  }

 protected:
  /// The group and the device are known now.
  virtual void on_connect() {}

  StrategyTraits traits_;
  std::shared_ptr<Collective> group_;
  c10::Device device_ = at::kCPU;
  PrecisionPlan precision_;
  bool sync_batchnorm_ = false;
  bool captured_ = false;

  /// The same by how the group communicates.
  std::string why_group_not_captured() const;
};

}  // namespace levin
