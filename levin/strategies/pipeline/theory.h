#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/strategies/pipeline/simulation.h"

namespace levin {

/// What the formulas of the papers say about a schedule, beside what `simulate` finds.
struct PipelineTheory {
  /// "(p-1)(F+B)/v": p ranks, v chunks, m micro-batches; F, B, I and W are forward, backward, backward of the input and
  /// backward of the weights of all stages of a rank.
  std::string bubble_formula;
  /// PipelineSimulation::bubble. Unset where no formula is known: transfers that take time, stages that are not even,
  /// "zbv" whose F, I and W are not equal.
  std::optional<double> bubble;
  /// PipelineSimulation::peak_activations of each rank.
  std::vector<int> peak_activations;
};

PipelineTheory theory_of(const PipelineSchedule& schedule, const PipelineCosts& costs = {});

}  // namespace levin
