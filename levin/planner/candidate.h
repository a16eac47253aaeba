#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "levin/planner/cluster_shape.h"
#include "levin/planner/model_shape.h"

namespace levin::planner {

enum class Schedule { kNone, kGPipe, k1F1B, kInterleaved, kZB1P, kZBV };
/// "none", "gpipe", "1f1b", "interleaved", "zb1p", "zbv".
std::string_view to_string(Schedule schedule);

/// What of a block's activations is computed again in backward: nothing, all but the results of matrix products and
/// attention, or everything.
enum class Checkpointing { kNone, kSelective, kFull };
std::string_view to_string(Checkpointing checkpointing);

/// A way to run a training step.
struct Candidate {
  /// Sizes of the axes, outermost to innermost; `ep` divides dp_shard * cp and lies in it, its ranks tp apart.
  int64_t pp = 1, dp_replicate = 1, dp_shard = 1, cp = 1, tp = 1, ep = 1;
  /// What is sharded over dp_shard * cp: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters (FSDP).
  int zero_stage = 0;
  Schedule schedule = Schedule::kNone;
  /// Pieces of the model on each rank of the pipeline.
  int64_t chunks = 1;
  /// Samples of a micro-batch, and micro-batches of a step.
  int64_t micro_batch = 1, microbatches = 1;
  bool sequence_parallel = false;
  Checkpointing checkpointing = Checkpointing::kNone;
  /// State lives in host memory.
  bool offload = false;

  int64_t gpus() const { return pp * dp_replicate * dp_shard * cp * tp; }
  int64_t data_parallel() const { return dp_replicate * dp_shard; }
  int64_t batch() const { return data_parallel() * micro_batch * microbatches; }
};

/// What the software that runs the step does. The defaults are Levin's.
struct Software {
  /// Attention never has all scores in memory, and skips those that a causal mask hides.
  bool flash_attention = true;
  /// Residual sums, norms, biases and activations are fused.
  bool fused_elementwise = true;
  /// Dropout behind attention and MLP, and on the scores.
  bool dropout = false;
  /// Gradients are reduced while backward computes.
  bool overlaps_gradients = true;
  /// Parameters are gathered while the layer before computes.
  bool overlaps_gathers = true;
  /// Sends between stages are cut into tp pieces, of which each rank sends one.
  bool scatters_sends = false;
  /// The last stage has fewer layers, for its head.
  bool balances_stages = true;
  /// The head computes its gradient together with the loss, in chunks: logits are never all in memory.
  bool chunked_loss = true;
  /// Weights are kept in 16 bits, gradients are summed in them: 2 + 2 + 12 bytes a parameter. Else as Levin's
  /// strategies.
  bool half_weights = false;
};

/// A run that a plan is asked for.
struct PlanQuestion {
  ModelShape model;
  ClusterShape cluster;
  /// Of a step, over all ranks. 0: by the size of the model (Brown et al. 2020, table 2.1).
  int64_t tokens_per_batch = 0;
  std::string precision = "bf16-mixed";
  Software software = {};
  /// How many plans are returned.
  int64_t top = 5;
};

}  // namespace levin::planner
