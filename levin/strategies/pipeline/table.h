#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/strategies/pipeline/orders.h"
#include "levin/strategies/pipeline/schedule.h"
#include "levin/strategies/pipeline/simulation.h"

/// The table of schedules: all that is known of each.
namespace levin::detail {

/// See PipelineTheory.
struct PipelineBubble {
  std::string formula;
  std::optional<double> value;
};

struct PipelineRow {
  PipelineScheduleTraits traits;
  PipelineOrder (*order)(const PipelineSizes& sizes, int rank);
  PipelineBubble (*bubble)(const PipelineSizes& sizes, const PipelineCosts& costs);
  int (*peak_activations)(const PipelineSizes& sizes, int rank);
};

const std::vector<PipelineRow>& pipeline_rows();
/// An unknown name is an Error.
const PipelineRow& pipeline_row(std::string_view name);

}  // namespace levin::detail
