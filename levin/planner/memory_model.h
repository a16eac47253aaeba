#pragma once

#include <map>
#include <tuple>

#include "levin/planner/candidate.h"

namespace levin::planner {

/// Bytes on one rank of a stage.
struct RankMemory {
  double parameters = 0, gradients = 0, optimizer = 0;
  /// Kept for backward, of all micro-batches that are under way.
  double activations = 0;
  /// The most of everything else: gathered layers, logits, results that nobody keeps, workspaces.
  double temporary = 0;
  double host = 0;
  /// The highest sum at one time.
  double peak = 0;
};

/// Parameters of a stage on one rank after tp, pp and ep, before sharding.
struct StageParameters {
  double layers = 0;   // without experts
  double experts = 0;  // those of this rank
  double embedding = 0, head = 0;
  double total() const { return layers + experts + embedding + head; }
};

/// Bytes of a run, stage by stage, in closed form. Checked against estimate_memory, which plays the step.
class MemoryModel {
 public:
  MemoryModel(const ModelShape& model, const Software& software, std::string precision);

  RankMemory of_stage(const Candidate& candidate, int64_t stage) const;
  /// The fullest stage.
  std::pair<int64_t, RankMemory> fullest(const Candidate& candidate) const;
  StageParameters stage_parameters(const Candidate& candidate, int64_t stage) const;
  /// Ranks that the experts of one rank are sharded over, as far as that divides them: rows are experts, and are padded
  /// to equal numbers. `shards` are the ranks that take part, `divide` how much less each has.
  struct ExpertShards {
    int64_t shards = 1;
    double divide = 1;
    /// Gathered elements for each that there is.
    double padding() const { return static_cast<double>(shards) / divide; }
  };
  ExpertShards expert_shards(const Candidate& candidate) const;
  /// Layers of a stage.
  int64_t stage_layers(const Candidate& candidate, int64_t stage) const;
  /// Of the stage with most of them.
  int64_t most_layers(const Candidate& candidate) const;

  /// Bytes that one layer keeps of one token, without the gathered layers and logits.
  double kept_per_token(const Candidate& candidate) const;
  /// Micro-batches whose activations a stage holds at once; of interleaved schedules a fraction.
  static double in_flight(const Candidate& candidate, int64_t stage);
  /// Bytes of an element of the residual stream.
  double residual_bytes(const Candidate& candidate) const;

 private:
  struct State {
    double parameters, gradients, optimizer, host;
  };
  State state(const Candidate& candidate, double ranks) const;
  double block_kept(const Candidate& candidate, Checkpointing checkpointing) const;
  double temporary(const Candidate& candidate, int64_t stage, const StageParameters& parameters, double tokens) const;

  ModelShape model_;
  Software software_;
  std::string precision_;
  bool mixed_, half_;
  mutable std::map<std::tuple<int, int, bool>, State> states_;
};

}  // namespace levin::planner
