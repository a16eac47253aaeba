#include "levin/strategies/pipeline/theory.h"

#include "levin/strategies/pipeline/table.h"

namespace levin {

PipelineTheory theory_of(const PipelineSchedule& schedule, const PipelineCosts& costs) {
  const detail::PipelineRow& row = detail::pipeline_row(schedule.name);
  const detail::PipelineSizes sizes{schedule.ranks, schedule.chunks, schedule.microbatches};
  const auto [formula, bubble] = row.bubble(sizes, costs);
  PipelineTheory theory{.bubble_formula = formula, .bubble = {}, .peak_activations = {}};
  if (costs.transfer == 0 && costs.stage_factors.empty()) theory.bubble = bubble;
  for (int rank = 0; rank < schedule.ranks; ++rank)
    theory.peak_activations.push_back(row.peak_activations(sizes, rank));
  return theory;
}

}  // namespace levin
