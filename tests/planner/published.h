#pragma once

#include <string>
#include <vector>

#include "levin/planner/search.h"

namespace levin::planner::testing {

/// Megatron-LM of the papers: no flash attention, dropout, gradients reduced behind backward, equal stages.
inline Software megatron() {
  return {.flash_attention = false,
          .fused_elementwise = false,
          .dropout = true,
          .overlaps_gradients = false,
          .overlaps_gathers = true,
          .scatters_sends = true,
          .balances_stages = false,
          .chunked_loss = false,
          .half_weights = true};
}

/// A run that was published. `tflops` are achieved per GPU, counted with the recomputed forward; `seconds` of a step.
struct Published {
  std::string model;
  int64_t gpus, tp, pp, chunks, micro_batch, batch;
  Checkpointing checkpointing = Checkpointing::kFull;
  bool sequence_parallel = false;
  double tflops = 0;
  double seconds = 0;
};

inline Candidate candidate_of(const Published& run) {
  Candidate c{.pp = run.pp, .tp = run.tp, .chunks = run.chunks, .micro_batch = run.micro_batch};
  c.dp_replicate = run.gpus / run.tp / run.pp;
  c.microbatches = run.batch / c.dp_replicate / run.micro_batch;
  c.schedule = run.pp == 1 ? Schedule::kNone : run.chunks > 1 ? Schedule::kInterleaved : Schedule::k1F1B;
  c.checkpointing = run.checkpointing;
  c.sequence_parallel = run.sequence_parallel;
  return c;
}

inline PlanQuestion question_of(const Published& run) {
  return {.model = model_shape(run.model), .cluster = cluster_of("a100", run.gpus), .software = megatron()};
}

/// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", table 1;
/// micro-batches and chunks are those of Megatron-LM's examples/sc21/run_table_1.sh.
inline std::vector<Published> narayanan_2021() {
  const auto full = Checkpointing::kFull;
  return {{"megatron-1.7b", 32, 1, 1, 1, 16, 512, full, false, 137},
          {"megatron-3.6b", 64, 2, 1, 1, 16, 512, full, false, 138},
          {"megatron-7.5b", 128, 4, 1, 1, 16, 512, full, false, 142},
          {"megatron-18b", 256, 8, 1, 1, 8, 1024, full, false, 135},
          {"megatron-39b", 512, 8, 2, 1, 4, 1536, full, false, 138},
          {"megatron-76b", 1024, 8, 4, 3, 2, 1792, full, false, 140},
          {"megatron-145b", 1536, 8, 8, 2, 2, 2304, full, false, 148},
          {"megatron-310b", 1920, 8, 16, 2, 1, 2160, full, false, 155},
          {"megatron-530b", 2520, 8, 35, 3, 1, 2520, full, false, 163},
          {"megatron-1t", 3072, 8, 64, 1, 1, 3072, full, false, 163}};
}

/// Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", tables 3 and 5: with full
/// recomputation, and with selective recomputation and sequence parallelism.
inline std::vector<Published> korthikanti_2022() {
  const auto full = Checkpointing::kFull, selective = Checkpointing::kSelective;
  return {{"megatron-22b", 8, 8, 1, 1, 4, 4, full, false, 0, 1.42},
          {"gpt3-175b", 64, 8, 8, 3, 1, 64, full, false, 0, 18.13},
          {"megatron-530b", 280, 8, 35, 3, 1, 280, full, false, 0, 49.05},
          {"megatron-1t", 512, 8, 64, 1, 1, 512, full, false, 0, 94.42},
          {"megatron-22b", 8, 8, 1, 1, 4, 4, selective, true, 0, 1.10},
          {"gpt3-175b", 64, 8, 8, 3, 1, 64, selective, true, 0, 13.75},
          {"megatron-530b", 280, 8, 35, 3, 1, 280, selective, true, 0, 37.83},
          {"megatron-1t", 512, 8, 64, 1, 1, 512, selective, true, 0, 71.49}};
}

}  // namespace levin::planner::testing
