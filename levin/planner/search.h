#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/planner/candidate.h"
#include "levin/planner/cost_model.h"
#include "levin/planner/memory_model.h"

namespace levin::planner {

/// A candidate with what it costs.
struct Plan {
  Candidate candidate;
  Cost cost;
  /// The fullest stage, and what a rank of it has.
  int64_t stage = 0;
  RankMemory memory;
  double tokens_per_second = 0;
  /// Shares of the peak: without and with recomputed arithmetic.
  double mfu = 0, hfu = 0;
};

/// The answer to a PlanQuestion.
struct Plans {
  /// Best first; of each (pp, cp, tp, ep) the best alone.
  std::vector<Plan> best;
  /// How many ways were looked at, and how many fit into memory.
  int64_t tried = 0, fitting = 0;
  /// Tokens of a step that were aimed at. A plan's own may differ by what does not divide.
  int64_t tokens_per_batch = 0;
};

/// Searches meshes, schedules, micro-batches, sharding, checkpointing and offload. An Error where nothing fits: it
/// tells the least memory that a plan needs.
///
///     auto plans = levin::planner::search({.model = model_shape("gpt3-175b"), .cluster = cluster_of("a100", 1024)});
Plans search(const PlanQuestion& question);

/// One candidate, whether it fits or not. An Error where it cannot be: sizes that do not divide.
Plan evaluate(const PlanQuestion& question, const Candidate& candidate, const Calibration& calibration = {});

/// Bytes of device memory that plans may use: without what the CUDA context, NCCL and fragmentation take.
double usable_memory(const ClusterShape& cluster);
/// As GPT-3's sizes were trained.
int64_t usual_tokens_per_batch(const ModelShape& model);

}  // namespace levin::planner
