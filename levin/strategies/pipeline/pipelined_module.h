#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "levin/strategies/options.h"
#include "levin/strategies/pipeline/reduce.h"
#include "levin/strategies/pipeline/runner.h"

namespace levin::detail {

/// In how many micro-batches a batch of that many rows is computed. One with fewer rows than micro-batches, as the last
/// one of an epoch may be, is computed in fewer.
int microbatches_of(const PipelineOptions& options, int ranks, int64_t rows);

/// Refuses a schedule that pipelines of that many ranks cannot have. Called before there are groups of these ranks: a
/// group that goes while an Error is under way ends the group that it is a part of.
void check_schedule(const PipelineOptions& options, int ranks);

/// A module that is cut into stages, where what a rank has of it may be under another strategy (sharded, with copies).
class PipelinedModule final : public ModuleSync {
 public:
  /// Cuts the module, and releases what other ranks of `pipeline` have. `all` is the pipeline and the copies of it.
  /// `copies`: those of which gradients are averaged here, and not by what set_inner is given; null: none.
  PipelinedModule(torch::nn::Module& module, const PipelineOptions& options, std::shared_ptr<Collective> pipeline,
                  Collective& all, std::shared_ptr<Collective> copies = nullptr);

  /// What is done around the forward and backward of a micro-batch; null: nothing. Gradients are reduced in the last
  /// backward of a step.
  void set_inner(std::unique_ptr<ModuleSync> inner);
  void set_device(c10::Device device) { stages_.set_device(device); }

  /// Empty when this object is gone.
  std::weak_ptr<PipelinedModule*> self() const { return self_; }
  const StageModule& stages() const { return stages_; }
  PipelineRunner& runner() { return runner_; }
  /// Null for what does not belong to the module.
  const StageCut::State* find(const Tensor& tensor) const;
  /// Whether this rank is the first of those that have it.
  bool is_first(const StageCut::State& state) const { return stages_.holders(state).front() == group_->rank(); }

  void before_forward() override;
  void after_forward(std::span<Tensor>) override {}
  void before_backward(const Tensor&) override;
  void after_backward(const std::exception*) override {}
  void set_sync(bool enabled) override { syncs_ = enabled; }
  void sync_buffers() override;
  int microbatches(int64_t rows) override { return microbatches_of(options_, group_->size(), rows); }
  Tensor run_microbatches(const MicrobatchStep& step) override;
  std::string share_text(std::string text) override;

 private:
  void around(const PipelineAction& action, const std::function<void()>& compute);

  PipelineOptions options_;
  std::shared_ptr<Collective> group_;
  PipelineSchedule mapping_;
  StageModule stages_;
  PipelineRunner runner_;
  Collective& all_;
  std::shared_ptr<Collective> copies_;
  StageReduce reduce_;
  std::map<int, PipelineSchedule> schedules_;
  std::unordered_map<const c10::TensorImpl*, const StageCut::State*> states_;
  std::unique_ptr<ModuleSync> inner_;
  std::shared_ptr<PipelinedModule*> self_ = std::make_shared<PipelinedModule*>(this);
  /// Backwards of this rank that are to come in the step.
  int to_come_ = 0;
  bool syncs_ = true;
};

}  // namespace levin::detail
