#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "levin/nn/policy.h"
#include "levin/strategies/options.h"

namespace torch::nn {
class Module;
}

namespace levin {

namespace detail {
struct GroupedParam;
struct GroupPlan;
class Residency;
class ScheduledGroup;
}  // namespace detail

/// How a model is cut into stages over the ranks of a pipeline (levin/strategies/pipeline).
struct PipelineLayout {
  PipelineOptions options = {};
  int ranks = 1;
  /// Whose stages are meant.
  int rank = 0;
  /// Pipelines whose gradients are averaged when all micro-batches are through.
  int copies = 1;
  /// Micro-batches of a batch of that many rows.
  std::function<int(int64_t rows)> microbatches = {};
};

/// What a strategy does to the state of a model: all that a memory estimate needs to know of it.
struct StateLayout {
  /// Over how many ranks state is sharded, and which state.
  int ranks = 1;
  bool shards_parameters = false;
  bool shards_gradients = false;
  bool shards_optimizer = false;
  /// Which state lives in host memory. Parameters are copied to the device unit by unit then.
  bool parameters_on_host = false;
  bool gradients_on_host = false;
  bool optimizer_on_host = false;
  /// In mixed precision parameters themselves are cast for the computation, not by autocast.
  bool casts_parameters = false;
  /// Full parameters stay in the dtype of the computation, and what the optimizer updates is beside its state.
  bool master_weights = false;
  /// Gradients are in buckets that are always allocated (ddp).
  bool gradient_buckets = false;
  /// Where parameters are not sharded (ZeRO 1 and 2): the next group is gathered while one computes.
  bool gathers_ahead = true;
  /// Gradients of one backward are kept in the dtype of the computation, but for float16 (ZeRO 1 and 2).
  bool narrow_gradients = false;
  /// Copies of the sharded state: each rank has as much as it would with `ranks` in all (hybrid).
  int replicas = 1;
  /// Gradients stay unsharded to the end of backward (ZeRO-1).
  bool reduces_at_end = false;
  /// What is on the host is a cache of files there, and not counted.
  bool parameters_on_disk = false;
  bool optimizer_on_disk = false;
  /// Gradients are freed as soon as they are used.
  bool optimizer_in_backward = false;
  /// ... and where the optimizer has no state, offloaded units are stepped on the device: gradients do not leave it.
  bool updates_in_place = false;
  /// Shards are kept in float32 whatever the precision (Gemini).
  bool keeps_float = false;
  /// Of gathered parameters; none: as the precision says.
  std::optional<c10::ScalarType> param_dtype = {};
  /// In which gradients are reduced, and in which those of micro-batches are added; none: the dtype of the shards.
  std::optional<c10::ScalarType> reduce_dtype = {};
  std::optional<c10::ScalarType> accumulate_dtype = {};
  /// As in MemoryQuestion, which takes precedence.
  std::optional<UnitPolicy> units = {};
  std::optional<UnitPolicy> checkpointing = {};
  bool offload_activations = false;
  /// What is done to a module before its state is sharded: leaves what a rank has of layers that ranks share.
  std::function<void(torch::nn::Module& module)> split_module = {};
  /// A rank has some stages of the model; none: all of it.
  std::optional<PipelineLayout> pipeline = {};
  /// Experts that are spread over ranks: the number of ranks that have those of a parameter, asked after split_module.
  /// The parameter is sharded over them; with gradient_buckets the gradient of one that no other rank has is in none.
  /// 0: it is on all ranks, as every one is where this is empty.
  std::function<int(const at::Tensor& parameter)> expert_ranks = {};
  /// Why memory estimates do not know the strategy; empty: they do.
  std::string not_estimated = {};

  /// Where state is sharded: which parameters are gathered together (`units` is the number of units), and how long they
  /// stay gathered.
  std::function<detail::GroupPlan(const std::vector<detail::GroupedParam>& params, size_t units)> plan_groups = {};
  std::function<std::unique_ptr<detail::Residency>(const std::vector<detail::ScheduledGroup*>& groups,
                                                   const detail::GroupPlan& plan)>
      make_residency = {};
};

}  // namespace levin
