#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "levin/core/main.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/graphs.h"
#include "levin/environments/environment.h"
#include "levin/fabric/compiled_step.h"
#include "levin/fabric/fabric_module.h"
#include "levin/fabric/generators.h"
#include "levin/fabric/options.h"
#include "levin/strategies/strategy.h"

namespace levin::detail {

/// What a Fabric owns and everything that was set up with it shares: it lives until the last of them is gone.
struct FabricCore {
  FabricPlan plan;
  Placement placement;
  const Accelerator* accelerator = nullptr;
  std::unique_ptr<Strategy> strategy;
  std::unique_ptr<GradScaler> scaler;
  bool launched = false;
  /// > 0 while fabric.backward runs. Read by gradient hooks on the autograd engine's threads.
  std::atomic<int> in_backward = 0;
  /// The backward of now leaves its graph for another one.
  std::atomic<bool> retains_graph = false;
  /// Calls of all modules that were set up.
  std::vector<std::weak_ptr<ModuleCall>> calls;
  /// Those of modules that must be called as setup returned them: by the strategy, or by the precision.
  std::vector<std::weak_ptr<ModuleCall>> wrapped;
  /// Optimizers that were set up: a second time is refused.
  std::vector<std::weak_ptr<OptimizerImpl>> optimizers;
  /// Random generators that a State of the program may hold.
  std::vector<std::weak_ptr<GeneratorStates>> generators;
  /// Loaders that were set up: their numbers name them.
  int loaders = 0;
  /// Changes when something is set up or loaded: steps captured before are captured again.
  int64_t version = 0;
  /// Made when a step is compiled; all of this Fabric share its memory.
  std::shared_ptr<GraphDevice> graphs;
  /// What runs compiled steps: where a group of ranks fails, their graphs end before it does.
  std::vector<std::weak_ptr<StepCompiler>> compilers;
  /// Torch's optimizers that were set up, and what steps them now: torch::save and torch::load are given the first.
  std::vector<std::pair<const torch::optim::Optimizer*, std::weak_ptr<OptimizerImpl>>> torch_optimizers;
  /// Under a strategy that shards: what a parameter is outside of the modules that were set up.
  std::unique_ptr<ShapeErrorNote> shape_note;
};

/// Where ranks see the gradients of their shards only, one that overflows stops the step of all. A strategy may come to
/// know later, when modules are set up, whether they do.
void share_found_inf(GradScaler& scaler, Strategy& strategy);

}  // namespace levin::detail
