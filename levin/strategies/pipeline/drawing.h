#pragma once

#include "levin/plots/timeline.h"
#include "levin/strategies/pipeline/simulation.h"

namespace levin {

/// The compute of every rank over time, with the numbers of the micro-batches. Later chunks of a rank are lighter.
///
///     write_drawing("1f1b.svg", picture_of(timeline_of(schedule, simulate(schedule))));
TimelinePlot timeline_of(const PipelineSchedule& schedule, const PipelineSimulation& simulation);

}  // namespace levin
