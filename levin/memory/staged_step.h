#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "levin/core/batch.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/pipeline/pipelined_module.h"

namespace levin::detail {

/// A training step of one rank of a pipeline on meta tensors: what the rank really does, in the order of its schedule,
/// with nobody at the other ends.
class StagedStep {
 public:
  using Forward = std::function<Tensor(const Batch& part)>;

  /// Finds out what the stages tell each other, then leaves in the module what the rank has of it.
  StagedStep(torch::nn::Module& module, const PipelineLayout& layout, const Batch& batch, Forward forward);

  /// Runs all micro-batches. `around` is called for each computation, which it must run. With `reduces`, gradients of
  /// what several stages have are summed, and averaged over copies, at the end.
  void run(PipelineRunner::Around around, bool reduces);
  /// Is told which weights are next where their gradients are computed apart, and says in which units they are.
  void set_owner_of_weights(ModuleSync& owner) { pipelined_->runner().set_owner_of_weights(&owner); }
  /// Backwards of a step.
  int backwards() const;
  /// Micro-batches of a step.
  int microbatches() const { return static_cast<int>(step_.rows.size()); }

 private:
  void learn_shapes(torch::nn::Module& module);
  void split(const Batch& batch, int parts);

  PipelineLayout layout_;
  Forward forward_;
  std::vector<Batch> parts_;
  MicrobatchStep step_;
  std::map<std::string, std::vector<StageShapes>> shapes_;  // of each shape of parts, by stage
  std::shared_ptr<Collective> all_;
  std::unique_ptr<PipelinedModule> pipelined_;
};

}  // namespace levin::detail
