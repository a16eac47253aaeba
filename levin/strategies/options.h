#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "levin/distributed/mesh.h"
#include "levin/nn/context/share.h"
#include "levin/nn/experts/split.h"
#include "levin/nn/policy.h"
#include "levin/nn/tensor/part.h"

namespace levin {

class Strategy;

/// Strategy "ddp": a copy of the model on every rank; gradients are averaged while backward runs.
struct DdpOptions {
  /// Walk the graph each step and let parameters that took no part pass. Costs time; needed when forward has branches.
  bool find_unused_parameters = false;
  /// The same parameters take part in every step: lets the reducer plan ahead, and parameters be used twice.
  bool static_graph = false;
  /// Gradients are views into the buckets: one copy of the gradients less in memory.
  bool gradient_as_bucket_view = true;
  /// Size of a bucket in MiB.
  double bucket_cap_mb = 25;
  /// Rank 0's buffers (batch norm statistics) are broadcast before each forward.
  bool broadcast_buffers = true;
  /// How gradients are compressed for the all-reduce: "" (not at all), "fp16", "bf16", "powersgd".
  std::string comm_hook = {};
  /// PowerSGD: rank of the approximation, steps of plain all-reduce at the start, least compression worth it.
  int64_t powersgd_rank = 1;
  int64_t powersgd_start_iter = 1000;
  double powersgd_min_compression_rate = 2;
  /// Batch norm takes its statistics over the batches of all ranks, in training, in every torch::nn::BatchNorm of the
  /// module.
  bool sync_batchnorm = false;
  /// "auto" (nccl when each rank has a GPU of its own, else gloo), "gloo" (ranks may then share a GPU), "nccl".
  std::string process_group_backend = "auto";
  /// How long a collective may wait for the other ranks. Defaults to 5 min.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// In what dtypes a sharded module computes. What is left open follows the run's precision: "bf16-mixed" gathers in
/// bfloat16, keeps float32 shards, and reduces and adds gradients in float32; "bf16-true" has everything in bfloat16.
struct MixedPrecision {
  /// Of gathered parameters: forward and backward compute in it. Inputs are cast as the run's precision says.
  std::optional<c10::ScalarType> param_dtype = {};
  /// In which gradients travel and are summed over the ranks; none: the dtype of the shards. Two bytes send half as
  /// much.
  std::optional<c10::ScalarType> reduce_dtype = {};
  /// In which gradients of micro-batches are added, from the second on; none: the dtype of the shards.
  std::optional<c10::ScalarType> accumulate_dtype = {};
  /// Of floating buffers.
  std::optional<c10::ScalarType> buffer_dtype = {};
};

/// Strategy "fsdp": parameters, gradients and optimizer states are sharded over the ranks; a unit has its full
/// parameters only while it computes.
struct FsdpOptions {
  /// Which modules are gathered one at a time. None: the blocks that repeat (policy::repeated()), and the whole model
  /// as one unit when there are none.
  std::optional<UnitPolicy> auto_wrap_policy = {};
  /// "full": parameters, gradients and optimizer states are sharded. "grad_op": parameters stay gathered from forward
  /// to the end of backward. "none": as ddp. "hybrid": full within groups of `hybrid_size` ranks, replicated between
  /// them.
  std::string sharding_strategy = "full";
  /// Ranks of one sharded copy of the model in "hybrid"; 0: those of one node.
  int hybrid_size = 0;
  /// Frees full parameters after forward and gathers them again for backward. None: as the sharding strategy says.
  std::optional<bool> reshard_after_forward = {};
  MixedPrecision mixed_precision = {};
  /// Parameters, gradients and optimizer states live in host memory; units are copied to the device for their turn.
  bool cpu_offload = false;
  /// Host memory of offloaded state is pinned: copies overlap with the computation.
  bool pin_memory = true;
  /// Units whose activations are recomputed in backward.
  std::optional<UnitPolicy> activation_checkpointing_policy = {};
  /// What a checkpointed unit keeps (its inputs) is offloaded to host memory.
  bool activation_cpu_offload = false;
  /// How many units are gathered ahead of the one that computes, in forward and in backward.
  int forward_prefetch = 1;
  int backward_prefetch = 1;
  /// At most N units are gathered, or being gathered, at once; 0: no limit but the prefetching.
  int limit_all_gathers = 0;
  /// The optimizer steps each unit as soon as its gradients are reduced, and frees them. It overlaps with the rest of
  /// backward. Not together with clipping, a loss scaler or accumulated gradients.
  bool optimizer_in_backward = false;
  /// Every rank starts from rank 0's values.
  bool sync_module_states = true;
  /// As in DdpOptions.
  bool sync_batchnorm = false;
  /// What checkpoints hold: "sharded" (every rank writes its shards, in parallel) or "full" (rank 0 writes what one
  /// process would, tensor by tensor). Both load anywhere.
  std::string state_dict_type = "sharded";
  /// "auto", "gloo", "nccl", as in DdpOptions.
  std::string process_group_backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// Where a part of the training state lives, in DeepSpeed's words.
struct ZeroOffload {
  /// "none", "cpu", "nvme".
  std::string device = "none";
  /// Folder for "nvme".
  std::string nvme_path = {};
  /// Host memory of it is pinned: copies overlap with the computation. Of parameters what is sent to the device, of the
  /// optimizer what comes from there, gradients; and what is sent where only the optimizer is offloaded.
  bool pin_memory = true;
};

/// Strategies "deepspeed_stage_1", "_2", "_3" (and "_offload"), with DeepSpeed's words and defaults.
struct ZeroOptions {
  /// What is sharded over the ranks. 1: optimizer states, 2: and gradients, 3: and parameters.
  int stage = 2;
  /// The optimizer's state, the parameters that it steps, and their gradients. The device keeps the parameters that it
  /// computes with (of stage 3: their shards).
  ZeroOffload offload_optimizer = {};
  /// Those, too. Stage 3 only, with offload_optimizer.
  ZeroOffload offload_param = {};
  /// At most N elements in one reduce-scatter, and in one all-gather of parameters (stages 1 and 2): a larger unit is
  /// sent in several groups. A single parameter is never split.
  int64_t reduce_bucket_size = 500'000'000;
  int64_t allgather_bucket_size = 500'000'000;
  /// In which gradients travel and are summed over the ranks, and in which those of micro-batches are added, from the
  /// second on; none: the dtype of the shards (float32 in mixed precision).
  std::optional<c10::ScalarType> communication_data_type = {};
  std::optional<c10::ScalarType> grad_accum_dtype = {};
  /// Communication overlaps with the computation.
  bool overlap_comm = true;
  /// Stage 3: N elements that are gathered ahead (one unit at least; 0: none); parameters of fewer elements than the
  /// threshold stay unsharded in a step; at most N elements are gathered at once.
  int64_t stage3_prefetch_bucket_size = 50'000'000;
  int64_t stage3_param_persistence_threshold = 100'000;
  int64_t stage3_max_live_parameters = 1'000'000'000;
  /// Which modules are gathered one at a time. None: as FsdpOptions.
  std::optional<UnitPolicy> auto_wrap_policy = {};
  std::optional<UnitPolicy> activation_checkpointing_policy = {};
  /// What checkpointed units keep is offloaded to host memory.
  bool cpu_checkpointing = false;
  /// As in FsdpOptions.
  bool optimizer_in_backward = false;
  /// As in DdpOptions.
  bool sync_batchnorm = false;
  /// "sharded" or "full", as in FsdpOptions.
  std::string state_dict_type = "sharded";
  std::string process_group_backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// Strategy "colossalai": parameters in chunks that move between the device, the other ranks and host memory as space
/// allows.
struct GeminiOptions {
  /// "auto" (device memory is filled, the chunk that is needed last is evicted), "cuda" (never evict), "cpu" (evict
  /// after each use), "static" (fractions below).
  std::string placement_policy = "auto";
  /// "static": which fraction of the chunks is sharded over the ranks, and which fraction of parameters and of
  /// optimizer states lives in host memory.
  double shard_param_frac = 1.0;
  double offload_param_frac = 0.0;
  double offload_optim_frac = 0.0;
  /// Elements of a chunk; 0: searched for.
  int64_t chunk_size = 0;
  /// The search, in 2^20 elements, and its step in elements (0: 1024).
  double search_range_m = 32;
  double min_chunk_size_m = 32;
  int64_t hidden_dim = 0;
  /// Fraction of the device that is not for parameters in the first step, in which it is measured.
  double warmup_non_model_data_ratio = 0.8;
  /// Fraction of the device that is used in all ("auto"); the rest is a margin.
  double steady_cuda_cap_ratio = 0.9;
  /// "auto": fraction of the memory that is free after the first step to which optimizer states return.
  double gpu_margin_mem_ratio = 0.0;
  /// Bytes of the device that may be used; 0: what it has (or what the allocator is limited to).
  int64_t memory_budget = 0;
  /// Chunks that are gathered ahead of their use.
  int max_prefetch = 1;
  bool pin_memory = true;
  /// float32, bfloat16 or float16: the dtype of parameters on the device; none: as the run's precision says.
  std::optional<c10::ScalarType> param_dtype = {};
  /// As in MixedPrecision.
  std::optional<c10::ScalarType> reduce_dtype = {};
  std::optional<c10::ScalarType> accumulate_dtype = {};
  std::optional<UnitPolicy> auto_wrap_policy = {};
  std::optional<UnitPolicy> activation_checkpointing_policy = {};
  /// As in FsdpOptions.
  bool optimizer_in_backward = false;
  /// As in DdpOptions.
  bool sync_batchnorm = false;
  /// "sharded" or "full", as in FsdpOptions.
  std::string state_dict_type = "sharded";
  std::string process_group_backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// Strategy "pipeline": the model is cut into stages, and each rank has some of them. A batch is computed in
/// micro-batches that follow each other through the stages (docs/parallelism.md).
struct PipelineOptions {
  /// Ranks of one pipeline; the ranks are that many pipelines, of which gradients are averaged. 0: all ranks.
  int size = 0;
  /// "gpipe", "1f1b", "interleaved", "zb1p", "zbv" (levin/strategies/pipeline/schedule.h).
  std::string schedule = "1f1b";
  /// Stages of a rank; 0: as the schedule has them. Only "interleaved" takes another number.
  int chunks = 0;
  /// In how many parts a batch is computed; sizes differ by one row at most. A batch with fewer rows is computed in
  /// fewer. 0: twice the ranks of a pipeline.
  int microbatches = 0;
  /// Of which units stages are made, in the order of registration. None: the blocks that repeat (policy::repeated()).
  std::optional<UnitPolicy> units = {};
  /// "units": every stage has as many units. "parameters": the largest stage has as few parameters as possible; what is
  /// before and behind the units counts too.
  std::string balance = "units";
  /// What each unit costs, in any measure (measure_unit_costs); the most expensive stage is as cheap as possible.
  std::vector<double> costs = {};
  /// Names of the units that begin the second stage, the third, ...; they decide alone.
  std::vector<std::string> cut_before = {};
  /// Modules and parameters besides the units belong to the stage that is registered before them. Names that begin so
  /// belong to the first stage, to the last one, or to every stage, which then sums their gradients.
  std::vector<std::string> first_stage = {};
  std::vector<std::string> last_stage = {};
  std::vector<std::string> every_stage = {};
  /// Every rank starts from rank 0's values. A deferred module starts from its own seed.
  bool sync_module_states = true;
  /// "auto", "gloo", "nccl", as in DdpOptions.
  std::string process_group_backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// Strategy "model_parallel": a model that is split over ranks (tp) and whose state is sharded over other ranks
/// (dp_shard x cp), in copies (dp_replicate).
struct ModelParallelOptions {
  /// How many ranks each kind takes; their product is the number of ranks, and one may be -1.
  ParallelSizes mesh = {.dp_shard = -1};
  /// Between split regions a rank of tp has a part of the sequence (TensorParallelOptions).
  bool sequence_parallel = false;
  /// How modules are split over tp. Empty: what the models say of themselves.
  TensorPlan plan = {};
  /// How state is sharded: "full" or "grad_op"; the mesh says over which ranks.
  FsdpOptions fsdp = {};
  /// How the model is cut into stages, and their schedule; the mesh says how many ranks have them.
  PipelineOptions pipeline = {};
};

/// The strategy that has these options; an Error, one line, for what cannot be. Options of any type can be chosen that
/// have such a function in their namespace (levin/strategies/choice.h).
std::unique_ptr<Strategy> strategy_of(const DdpOptions& options);
std::unique_ptr<Strategy> strategy_of(const FsdpOptions& options);
std::unique_ptr<Strategy> strategy_of(const ZeroOptions& options);
std::unique_ptr<Strategy> strategy_of(const GeminiOptions& options);
std::unique_ptr<Strategy> strategy_of(const TensorParallelOptions& options);
std::unique_ptr<Strategy> strategy_of(const PipelineOptions& options);
std::unique_ptr<Strategy> strategy_of(const ModelParallelOptions& options);
std::unique_ptr<Strategy> strategy_of(const ContextParallelOptions& options);
std::unique_ptr<Strategy> strategy_of(const ExpertParallelOptions& options);

}  // namespace levin
