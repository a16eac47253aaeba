#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "levin/distributed/collective.h"
#include "levin/strategies/module_sync.h"
#include "levin/strategies/pipeline/schedule.h"
#include "levin/strategies/pipeline/stage.h"

namespace levin {

/// What a runner counts, of the last step on this rank.
struct PipelineCounts {
  /// Actions in the order in which they were done.
  std::vector<PipelineAction> actions;
  /// Most micro-batches of stages whose activations were held at once.
  int peak_live = 0;
  /// Bytes of activations and of their gradients that were sent.
  int64_t forward_bytes = 0, backward_bytes = 0;
};

/// Carries out a schedule over the ranks of a pipeline. It takes the group of the pipeline alone: what the ranks are
/// beside it (copies, shards, parts of layers) is nobody's business here.
///
///     StageModule stages(plan_stages(*model, schedule.stages(), options), rank_of_stage, group->rank());
///     PipelineRunner runner(stages, group);
///     auto loss = runner.run(schedule, step);     // gradients are in the parameters of this rank's stages
class PipelineRunner {
 public:
  /// Both must outlive it. Every rank of the group must make one.
  PipelineRunner(StageModule& module, Collective& group);

  /// Runs forward and, where gradients are enabled, backward of all micro-batches; returns the loss on every rank, as
  /// `run_microbatches` of ModuleSync does. Gradients are added to those that are there; what several stages have, and
  /// copies of the pipeline, are not reduced yet. Every rank must call, with micro-batches of the same shapes.
  Tensor run(const PipelineSchedule& schedule, const MicrobatchStep& step);
  /// Forward only, one micro-batch after the other: what `run` does where gradients are disabled.
  static PipelineSchedule forward_only(const PipelineSchedule& schedule);

  /// What a stage would be told of micro-batches of that shape, where nobody is there to tell it (memory estimates).
  void set_shapes(int stage, const std::string& microbatch, detail::StageShapes shapes) {
    shapes_[{stage, microbatch}] = std::move(shapes);
  }

  const PipelineCounts& counts() const { return counts_; }
  /// Called around each computation, which it must run: for what a strategy does before and after.
  using Around = std::function<void(const PipelineAction&, const std::function<void()>& compute)>;
  void set_around(Around around) { around_ = std::move(around); }
  /// Told which weights are next where their gradients are computed apart; null: nobody is.
  void set_owner_of_weights(ModuleSync* owner) { weights_ = owner; }
  /// Called before each action: for traces and tests.
  void set_observer(std::function<void(const PipelineAction&)> observer) { observer_ = std::move(observer); }

 private:
  struct Step;
  struct Live;
  void forward(Step& step, const PipelineAction& action);
  void backward(Step& step, const PipelineAction& action);
  void transfer(Step& step, const std::vector<PipelineAction>& actions);
  void post(Step& step, const std::vector<PipelineAction>& actions);
  void send_shapes(Step& step, const PipelineAction& action);
  void receive_shapes(Step& step, const PipelineAction& action);
  void check_shapes(const MicrobatchStep& step) const;
  void note_receiving(const PipelineAction& action, int stage);
  detail::StageShapes& shapes_to(const Step& step, int stage, int microbatch);

  StageModule& module_;
  Collective& group_;
  /// What a stage is told, by the stage and the shape of the micro-batch.
  std::map<std::pair<int, std::string>, detail::StageShapes> shapes_;
  PipelineCounts counts_;
  std::function<void(const PipelineAction&)> observer_;
  Around around_;
  ModuleSync* weights_ = nullptr;
};

}  // namespace levin
