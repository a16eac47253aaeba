#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "levin/core/worker_thread.h"
#include "levin/optim/forwarding.h"
#include "levin/strategies/sharding/group.h"

namespace levin::detail {

/// An optimizer of parameters that live in host memory, or that are stepped while backward still runs, or one that is
/// to see gradients in the dtype of its parameters.
///
/// Shards in host memory that are computed with in another dtype have a copy in that dtype, which goes to the device;
/// it is written in the same pass over memory as the parameter.
class UnitOptimizer final : public optim::ForwardingOptimizer {
 public:
  UnitOptimizer(Optimizer inner, std::string strategy, bool in_backward);
  ~UnitOptimizer() override;

  /// Groups whose parameters may be among the optimizer's.
  void add_groups(const std::vector<std::unique_ptr<ShardGroup>>& groups);
  /// The reduced gradients of a group are in place (in host memory: when `arrived` returns). Its parameters get them
  /// once, then each of `optimizers` steps its own.
  static void group_is_ready(const std::vector<std::shared_ptr<UnitOptimizer>>& optimizers, ShardGroup& group,
                             std::function<void()> arrived);
  /// Whether its steps need nothing but parameters and gradients (SGD without momentum).
  bool is_stateless() const;
  bool owns_all(const ShardGroup& group) const;
  bool owns_any(const ShardGroup& group) const;
  /// Steps the full parameters of a group by their gradients, where they are.
  void step_in_place(ShardGroup& group) { step_group(group); }
  /// Waits for the steps that were started in backward.
  void join() { thread_.join(); }
  bool in_backward() const { return in_backward_; }
  /// Units that were stepped in this backward so far, and not by the end of one; after join().
  std::vector<std::string> take_stepped() { return std::exchange(stepped_, {}); }
  /// A backward threw; the next one begins a step.
  void backward_failed() { since_step_.clear(); }

  void step() override;
  bool step_scaled(const GradScale& scale) override;
  Tensor step_with(const std::function<Tensor()>& closure) override;
  std::string prepare_capture() override { return inner().impl()->prepare_capture(); }
  uint64_t layout_version() const override { return inner().impl()->layout_version(); }
  void add_param_group(std::vector<Tensor> params, const StateDict& options) override {
    for (const auto& param : params) own_.insert(param.unsafeGetTensorImpl());
    ForwardingOptimizer::add_param_group(std::move(params), options);
  }

 private:
  bool step_all(const GradScale* scale);
  void step_group(ShardGroup& group);

  std::string strategy_;
  bool in_backward_;
  std::unordered_map<const c10::TensorImpl*, std::pair<ShardGroup*, size_t>> places_;
  std::unordered_set<const c10::TensorImpl*> own_;
  std::mutex stepping_;  // shards on the device are stepped by the thread of backward
  std::vector<std::string> stepped_;
  std::unordered_set<const ShardGroup*> since_step_;
  WorkerThread thread_;
};

}  // namespace levin::detail
