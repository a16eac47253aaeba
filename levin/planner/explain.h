#pragma once

#include <string>
#include <vector>

#include "levin/planner/search.h"

namespace levin::planner {

/// The plan with one thing changed: why it is as it is.
struct Alternative {
  /// "tp 4", "no checkpointing", "pp 4, micro-batch 1": the micro-batch is what suits the change.
  std::string change;
  bool fits = true;
  /// Bytes of the fullest rank, and how much longer a step takes: 0.12 is 12 %.
  double memory = 0;
  double slower = 0;
  /// What got worse most: "bubble", "tp", "compute"; empty where it does not fit or is not slower.
  std::string because;
};

/// Neighbours of a plan, at the same batch: half and double of tp, pp, ep and the micro-batch, other schedules, other
/// checkpointing and sharding.
std::vector<Alternative> alternatives(const PlanQuestion& question, const Plan& plan);

/// "pp 8 x dp_replicate 16 x tp 8, ep 2": axes that are not 1; "1 GPU" when all are.
std::string mesh_text(const Candidate& candidate);
/// "interleaved, 3 chunks".
std::string schedule_text(const Candidate& candidate);
/// "fsdp", "grad_op", "zero-1", "-".
std::string sharding_text(const Candidate& candidate);

/// Lines for a terminal: the table of plans; where the time of the first goes, its memory, its neighbours and its
/// configuration.
std::string plans_text(const PlanQuestion& question, const Plans& plans);
std::string plans_json(const PlanQuestion& question, const Plans& plans);
/// The strategy as C++ takes it ("levin::ModelParallelOptions{...}") and as command lines and configuration files do
/// ("model_parallel:pp=8,..."). Selective checkpointing is in neither: checkpoint_activations does it.
std::string strategy_text(const Candidate& candidate);
std::string strategy_name(const Candidate& candidate);
/// The plan in C++, the options of a Fabric, and as arguments of `levin fit`.
std::string configuration_text(const PlanQuestion& question, const Plan& plan);

}  // namespace levin::planner
