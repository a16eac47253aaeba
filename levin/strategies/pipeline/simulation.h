#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/strategies/pipeline/schedule.h"

namespace levin {

/// What one stage takes for one micro-batch, in any unit of time. With v chunks a rank, a stage is 1/v of its layers.
struct PipelineCosts {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// kBackward; unset means backward_input + backward_weight.
  std::optional<double> backward = {};
  /// From one rank to another.
  double transfer = 0;
  /// How much more each stage computes than a usual one, for cuts that are not even. Empty means 1 for all.
  std::vector<double> stage_factors = {};

  double of(const PipelineAction& action) const;
  double whole_backward() const { return backward.value_or(backward_input + backward_weight); }
};

/// How transfers behave.
enum class PipelineTransfers : uint8_t {
  /// A send returns at once. Only the compute that needs the data waits for it.
  kBuffered,
  /// A rank waits until all sends and receives of a group are complete, and each needs both sides. A schedule without
  /// deadlock here has none on any backend.
  kRendezvous,
};

/// An action and when it ran. A transfer lasts from its post to the arrival of the data.
struct PipelineSpan {
  PipelineAction action;
  double start = 0, end = 0;
};

struct PipelineSimulation {
  std::vector<std::vector<PipelineSpan>> spans;  ///< of each rank, in its order
  /// From the first action to the last one of any rank.
  double total = 0;
  /// The largest time between first and last compute of a rank. Smaller than `total` only where ranks start late and
  /// end late alike, as in "zbv".
  double window = 0;
  /// Idle time of the rank that is idle most, within its own window.
  double bubble = 0;
  /// bubble / compute of that rank, the figure of the papers.
  double bubble_to_compute = 0;
  /// The largest number of forwards of each rank whose backward (of the weights, where it is split) is not done: stages
  /// times micro-batches whose activations it holds.
  std::vector<int> peak_activations;

  /// Of the window of that rank.
  double bubble_fraction() const { return bubble_to_compute / (1 + bubble_to_compute); }
};

/// Plays the lists of all ranks. A deadlock is an Error that says which rank waits for what.
PipelineSimulation simulate(const PipelineSchedule& schedule, const PipelineCosts& costs = {},
                            PipelineTransfers transfers = PipelineTransfers::kBuffered);

/// Checks a schedule, also one that was not made here. An Error tells the first thing that is wrong: a stage and
/// micro-batch without exactly one forward and one backward (whole, or input and weight), sends and receives of two
/// ranks in different orders, a group that is torn, a deadlock with transfers that block.
void check_pipeline_schedule(const PipelineSchedule& schedule);

/// The first action in which a rank did something else than planned, as one line; empty if it kept to the plan.
/// `done` is what it recorded.
std::string difference_from_plan(const PipelineSchedule& schedule, int rank, const std::vector<PipelineAction>& done);

}  // namespace levin
