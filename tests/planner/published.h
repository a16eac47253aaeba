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

/// Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
/// (arXiv:2104.04473), table 1. Sizes, GPUs, batches and teraFLOP/s: as NVIDIA/Megatron-LM has the table in its README
/// of April 2021 (images/cases_april2021.png). Heads, tp, pp, micro-batches and chunks: its run_table_1.sh of SC21.
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

/// The other columns of that table.
struct PublishedSize {
  const char* model;
  int64_t width, layers, heads;
  /// Billions of parameters, percent of the peak, petaFLOP/s of all GPUs.
  double parameters, percent, petaflops;
};
inline std::vector<PublishedSize> narayanan_2021_sizes() {
  return {{"megatron-1.7b", 2304, 24, 24, 1.7, 44, 4.4},        {"megatron-3.6b", 3072, 30, 32, 3.6, 44, 8.8},
          {"megatron-7.5b", 4096, 36, 32, 7.5, 46, 18.2},       {"megatron-18b", 6144, 40, 48, 18.4, 43, 34.6},
          {"megatron-39b", 8192, 48, 64, 39.1, 44, 70.8},       {"megatron-76b", 10240, 60, 80, 76.1, 45, 143.8},
          {"megatron-145b", 12288, 80, 96, 145.6, 47, 227.1},   {"megatron-310b", 16384, 96, 128, 310.1, 50, 297.4},
          {"megatron-530b", 20480, 105, 128, 529.6, 52, 410.2}, {"megatron-1t", 25600, 128, 160, 1008.0, 52, 502.0}};
}

/// Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" (arXiv:2205.05198), tables
/// 3 and 5: with full recomputation, and with selective recomputation and sequence parallelism. The MFU of the latter
/// is in the README of NVIDIA/Megatron-LM of 2023 too; seconds are those of the paper.
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

/// Megatron-Core r0.8.0 on H100, vocabulary 131072, 4096 tokens, 48 data-parallel ranks: NVIDIA/Megatron-LM, README of
/// 2024 (images/model_table.png). Micro-batches and chunks are not told.
struct PublishedH100 {
  double parameters;
  int64_t heads, width, layers, tp, pp, gpus, batch;
  double tflops;
};
inline std::vector<PublishedH100> megatron_core_2024() {
  return {{1.7, 16, 2048, 24, 1, 1, 48, 192, 408.8},       {7.1, 32, 4096, 30, 2, 1, 96, 192, 465.9},
          {16, 48, 6144, 32, 4, 1, 192, 192, 489.1},       {32, 56, 7168, 48, 8, 1, 384, 192, 459.6},
          {70, 64, 8192, 84, 8, 2, 768, 384, 419.7},       {119, 80, 10240, 92, 8, 4, 1536, 768, 420.5},
          {177, 96, 12288, 96, 8, 6, 2304, 1152, 432.8},   {314, 128, 16384, 96, 8, 8, 3072, 1536, 474.4},
          {462, 144, 18432, 112, 8, 16, 6144, 3072, 459.9}};
}

/// Megatron-Core: flash attention, a sharded optimizer, gradients and parameters sent beside the computation.
inline Software megatron_core() {
  auto software = megatron();
  software.flash_attention = software.overlaps_gradients = true;
  return software;
}

/// Llama Team 2024, "The Llama 3 Herd of Models" (arXiv:2407.21783), table 4: 405B on H100, tp 8 x pp 16, 16M tokens a
/// step. MFU in percent.
struct PublishedLlama {
  int64_t gpus, cp, dp, sequence;
  double mfu;
};
inline std::vector<PublishedLlama> llama_3_2024() {
  return {{8192, 1, 64, 8192, 43}, {16384, 1, 128, 8192, 41}, {16384, 16, 8, 131072, 38}};
}

/// Mixtures of experts on H100 in bfloat16, dropless, all-to-all, 4096 tokens a sample, micro-batches of 1: README of
/// Megatron-Core's MoE (megatron/core/transformer/moe of NVIDIA/Megatron-LM; the mapping of v0.8, the figures of v0.8
/// and v0.9), and yanring/Megatron-MoE-ModelZoo (runtime.conf, best_practice/Mixtral, best_practice/Qwen3). `ep` is
/// that of our mesh, in which experts are split by tp as well; where they are not (8x22B, Qwen3), it is theirs / tp, so
/// that a rank has as much of them.
struct PublishedExperts {
  std::string model;
  int64_t gpus, tp, pp, ep, chunks, batch;
  Checkpointing checkpointing;
  double tflops;
};
inline std::vector<PublishedExperts> megatron_core_experts() {
  return {{"mixtral-8x7b", 64, 1, 4, 8, 8, 256, Checkpointing::kNone, 468},
          {"mixtral-8x7b", 64, 1, 4, 8, 8, 256, Checkpointing::kNone, 438},
          {"mixtral-8x22b", 128, 2, 8, 4, 1, 256, Checkpointing::kNone, 455},
          {"qwen3-235b-a22b", 256, 2, 32, 4, 3, 2048, Checkpointing::kSelective, 200}};
}

/// Megatron-Core with fused kernels and without dropout.
inline Software megatron_core_fused() {
  auto software = megatron_core();
  software.fused_elementwise = true, software.dropout = false;
  return software;
}

}  // namespace levin::planner::testing
