#pragma once

#include <chrono>
#include <exception>
#include <functional>
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

namespace levin {

struct StateLayout;

/// What a strategy does around one module that was set up with it. All calls are made by Fabric, in this order, each
/// step: before_forward, after_forward, before_backward, after_backward.
class ModuleSync {
 public:
  virtual ~ModuleSync() = default;

  /// Before the module's forward, when gradients are enabled or not.
  virtual void before_forward() = 0;
  /// After it, whether it returned or threw.
  virtual void leave_forward() {}
  /// Then, when it returned, with every tensor of the output that needs a gradient.
  virtual void after_forward(std::span<Tensor> outputs) = 0;
  /// Before the backward of a loss that came from this module's output.
  virtual void before_backward(const Tensor& loss) = 0;
  /// After it. Throws when ranks disagree about what was used: one line, the same on every rank.
  virtual void after_backward() = 0;
  /// Backward threw instead. Throws the line on which the ranks agree when other ranks have to do with it; returns when
  /// the failure is this rank's own, after telling the others.
  virtual void backward_failed(const std::exception& error) = 0;
  /// While false, gradients are only accumulated locally (no_backward_sync). It must cover forward and backward.
  virtual void set_sync(bool enabled) = 0;
  /// Rank 0's buffers on every rank, where the strategy keeps them the same. Every rank must call.
  virtual void sync_buffers() {}
  /// From here on ranks may make different numbers of steps: one that has made its last takes part in the reductions of
  /// the others with zeros, until end_join(). Gradients are divided by the number of all ranks, or of those that still
  /// step. False: this strategy cannot.
  virtual bool begin_join(bool /*divide_by_initial_world_size*/) { return false; }
  /// This rank has made its last step. Returns when all have; parameters and buffers are then those of a rank that made
  /// the most.
  virtual void end_join() {}
};

/// Runs a backward pass between the before_backward and after_backward of modules, as every strategy needs it.
///
///     run_backward(syncs, loss, [&] { loss.backward(); });
void run_backward(std::span<ModuleSync* const> modules, const Tensor& loss, const std::function<void()>& backward);

/// How a model is spread over processes. The only floor that knows that there are other ranks.
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// "single_device", "ddp", ...
  virtual std::string name() const = 0;
  /// How the group that connect() is given shall be joined.
  virtual CollectiveOptions collective_options() const { return {}; }
  /// Takes the group and the device of this rank; called once, by Fabric::launch.
  virtual void connect(std::shared_ptr<Collective> group, c10::Device device) = 0;
  virtual Collective& group() const = 0;
  virtual c10::Device device() const = 0;

  /// In what precision the run computes; called once, before modules are set up.
  virtual void set_precision(const PrecisionPlan&) {}
  /// Batch norm of modules that are set up later takes its statistics over the batches of all ranks. By itself an Error
  /// that names the strategy: each says so itself when it can.
  virtual void sync_batchnorm();
  /// Whether setup_module itself moves a module to its device, converts it and makes deferred parameters: a module that
  /// is to be divided must not be whole anywhere before.
  virtual bool places_modules() const { return false; }
  /// Which tensors are parts of larger ones; null when every rank holds all of everything.
  virtual ShardMap* shards() { return nullptr; }

  /// Prepares a module that is on its device, in its dtype. Null when there is nothing to do around its calls.
  /// Every rank must call.
  virtual std::unique_ptr<ModuleSync> setup_module(torch::nn::Module& module) = 0;
  /// Prepares an optimizer of modules that were set up; may return another one that stands in for it.
  virtual Optimizer setup_optimizer(Optimizer optimizer) { return optimizer; }
  /// The L2 (or p-) norm of all gradients together, over all ranks that hold a part.
  virtual Tensor grad_norm(std::span<const Tensor> params, double norm_type);

  /// What it does to the state of a model, in numbers (levin/memory/estimate.h); once it is connected.
  virtual StateLayout layout() const;
  /// What a training step will take under it: estimate_memory(*this, ...) of levin/memory/estimate.h.
  ///
  ///     fabric.strategy().estimate(make, forward, loss, batch, MemoryQuestion{.precision = "bf16-mixed"});
  template <class... A>
  auto estimate(A&&... args) const {
    return estimate_memory(*this, std::forward<A>(args)...);
  }
};

struct DdpOptions {
  /// Walk the graph each step and let parameters that took no part pass. Costs time; needed when forward has branches.
  bool find_unused_parameters = false;
  /// The same parameters take part in every step: lets the reducer plan ahead, and parameters be used twice.
  bool static_graph = false;
  /// Gradients are views into the buckets: one copy of the gradients less in memory.
  bool gradient_as_bucket_view = true;
  /// Bytes of one bucket in MiB.
  double bucket_cap_mb = 25;
  /// Rank 0's buffers (batch norm statistics) are sent to all before each forward.
  bool broadcast_buffers = true;
  /// "", "fp16", "bf16", "powersgd": how gradients are compressed on their way.
  std::string comm_hook = {};
  /// PowerSGD: rank of the approximation, steps of plain all-reduce at the start, least compression worth it.
  int64_t powersgd_rank = 1;
  int64_t powersgd_start_iter = 1000;
  double powersgd_min_compression_rate = 2;
  /// Batch norm takes its statistics over the batches of all ranks, in training, in every torch::nn::BatchNorm of the
  /// module.
  bool sync_batchnorm = false;
  /// "auto" (nccl when each rank has a GPU of its own, else gloo), "gloo" (ranks may then share a GPU), "nccl".
  std::string process_group_backend = "auto";
  /// How long a collective may wait for the other ranks.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

}  // namespace levin
