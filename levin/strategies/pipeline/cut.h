#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "levin/nn/policy.h"
#include "levin/strategies/options.h"

namespace levin {

using at::Tensor;

/// A model that is cut into stages: which units a stage has, and what else belongs to it. A plan: nothing is changed.
///
/// What computes between two units belongs to the stage of the first of them: a stage ends where the first unit of the
/// next one is called. Parameters that modules above the units have themselves may be used anywhere; every stage has
/// them.
struct StageCut {
  /// A parameter or buffer, once however often it is registered.
  struct State {
    /// The first of its names.
    std::string name;
    Tensor tensor;
    /// Those that use it, in order. Several: gradients are summed (tied embeddings).
    std::vector<int> stages;
    /// Of the whole tensor.
    std::vector<int64_t> sizes;
    bool is_parameter = true;
    /// It is inside of a unit, so that nothing else uses it.
    bool in_unit = false;
    /// Where the module that has it runs. A buffer may be on every stage, and is changed there alone.
    int home = 0;
  };

  /// In the order of the model.
  std::vector<SelectedUnit> units;
  /// The first unit of each stage, as an index into `units`.
  std::vector<size_t> starts;
  /// Outermost units that are not among `units` (embeddings, heads).
  std::vector<SelectedUnit> sides;
  std::vector<State> states;

  int stages() const { return static_cast<int>(starts.size()); }
  int stage_of(size_t unit) const;
};

/// Cuts by unit names, by costs, or evenly, as the options say. What cannot be cut so is an Error that names it.
StageCut plan_stages(torch::nn::Module& module, int stages, const PipelineOptions& options);

/// Seconds of each unit in a step, from the time of its forward (backward takes about twice that everywhere). `run`
/// runs the model, without gradients; it is called `times` times after a call that does not count.
///
///     options.costs = levin::measure_unit_costs(*model, options, [&] { model(sample); });
std::vector<double> measure_unit_costs(torch::nn::Module& module, const PipelineOptions& options,
                                       const std::function<void()>& run, int times = 3);

}  // namespace levin
