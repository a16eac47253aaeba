#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "levin/core/batch.h"
#include "levin/nn/policy.h"
#include "levin/optim/optimizer.h"
#include "levin/precision/precision.h"
#include "levin/profilers/memory_timeline.h"

namespace levin {

class Strategy;
struct FsdpOptions;
struct ZeroOptions;
struct GeminiOptions;

/// A model and its training step, made anew for every estimate, on tensors without memory.
struct TrainingStep {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(const Batch&)> forward;
  std::function<Tensor(const Tensor& output, const Batch&)> loss;
};
using MakeTrainingStep = std::function<TrainingStep()>;

/// How parameters are placed in chunks that are gathered together, as GeminiOptions has it: elements of a chunk (0:
/// they are searched for, between the least size and that and the range, in steps).
struct ChunkLayout {
  int64_t elements = 0;
  int64_t least = 0;
  int64_t range = 0;
  int64_t step = 1024;
};

/// What a strategy does to the state of a model, in numbers: all that an estimate needs to know of it.
struct StateLayout {
  /// Over how many ranks state is divided, and which part of it.
  int ranks = 1;
  bool shards_parameters = false;
  bool shards_gradients = false;
  bool shards_optimizer = false;
  /// Which part lives in host memory. Parameters come to the device unit by unit then.
  bool parameters_on_host = false;
  bool gradients_on_host = false;
  bool optimizer_on_host = false;
  /// In mixed precision parameters themselves are cast for the computation, not by autocast.
  bool casts_parameters = false;
  /// Whole parameters stay in the dtype of the computation, and what the optimizer updates is beside its state.
  bool master_weights = false;
  /// Gradients are in buckets that are always there (ddp).
  bool gradient_buckets = false;
  /// Units stay whole from forward to the end of their backward.
  bool keeps_gathered = false;
  /// Units that are gathered ahead of the one that computes, in forward and in backward.
  int prefetch = 1;
  int backward_prefetch = 1;
  /// Copies of the divided state: each rank has as much as it would with `ranks` in all (hybrid).
  int replicas = 1;
  /// Gradients stay whole to the end of backward (ZeRO-1).
  bool reduces_at_end = false;
  /// Elements that are gathered ahead, and whole in all; 0: no limit.
  int64_t most_ahead = 0;
  int64_t most_live = 0;
  /// Parameters of fewer elements are whole all through forward and backward.
  int64_t persistence_threshold = 0;
  /// What is on the host is a cache of files there, and not counted.
  bool parameters_on_disk = false;
  bool optimizer_on_disk = false;
  /// Gradients go as soon as they are used.
  bool optimizer_in_backward = false;
  /// Parts are kept in float32 whatever the precision (Gemini).
  bool keeps_float = false;
  /// Parameters are gathered in chunks, and not by unit.
  std::optional<ChunkLayout> chunks = {};
  /// Of gathered parameters, and in which gradients travel; none: as the precision says.
  std::optional<c10::ScalarType> param_dtype = {};
  std::optional<c10::ScalarType> reduce_dtype = {};
  /// As in MemoryQuestion, which goes before them.
  std::optional<UnitPolicy> units = {};
  std::optional<UnitPolicy> checkpointing = {};
  bool offload_activations = false;
};

/// How the strategy of that name lays out state over that many ranks: "single_device", "ddp", "fsdp",
/// "deepspeed_stage_1" to "_3" (and "_offload"), "colossalai"; "auto" is one of the first two. An unknown name is an
/// Error with the nearest. Options are those of the strategy by itself, and all that can be on the host is with
/// `offload`.
StateLayout state_layout(const std::string& strategy, int ranks = 1, bool offload = false);
StateLayout state_layout(const FsdpOptions& options, int ranks);
StateLayout state_layout(const ZeroOptions& options, int ranks);
StateLayout state_layout(const GeminiOptions& options, int ranks);
std::vector<std::string> known_layouts();

/// Bytes of state per parameter on one rank, on the device and in host memory.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double host = 0;
  double device() const { return parameters + gradients + optimizer; }
};
StateBytes bytes_per_parameter(const StateLayout& layout, const PrecisionPlan& precision, const std::string& optimizer);

/// "adam", "adamw", "adam_8bit", "adamw_8bit", "sgd", "sgd_momentum", "adagrad", "lion", "adafactor"
std::vector<std::string> known_memory_optimizers();

namespace detail {
template <class Make, class Forward, class Loss>
MakeTrainingStep training_step_of(Make make, Forward forward, Loss loss) {
  return [=]() -> TrainingStep {
    auto model = make();
    std::shared_ptr<torch::nn::Module> module;
    if constexpr (requires { model.ptr(); })
      module = model.ptr();
    else
      module = model;
    return {module, [model, forward](const Batch& given) mutable { return forward(model, given); }, loss};
  };
}
}  // namespace detail

/// What an estimate is asked about.
struct MemoryQuestion {
  /// As state_layout takes it; `layout` goes before it.
  std::string strategy = "auto";
  std::optional<StateLayout> layout = {};
  std::string precision = "32-true";
  std::string optimizer = "adam";
  /// Of an optimizer of your own, which is asked about in place of `optimizer`: `opt.traits()`.
  std::optional<OptimizerTraits> optimizer_traits = {};
  /// As in optim::AdamOptions: the dtype of its averages; none: that of the parameters.
  std::optional<c10::ScalarType> moments_dtype = {};
  int world_size = 1;
  /// State lives in host memory as far as the strategy can do it.
  bool offload = false;
  /// The device whose kernels and allocator are played; it need not be here.
  c10::DeviceType device = c10::DeviceType::CUDA;
  /// Units whose activations are computed again in backward.
  std::optional<UnitPolicy> checkpointing = {};
  /// Units that repeat (EncoderBlock, Bottleneck) are checkpointed; `checkpointing` goes before it.
  bool checkpoint_blocks = false;
  /// What checkpointed units keep goes to host memory.
  bool offload_activations = false;
  /// Units that are gathered one at a time; none: those that repeat, or the whole model.
  std::optional<UnitPolicy> units = {};
  /// Forward and backward passes of one optimizer step; ranks communicate in the last one.
  int accumulate = 1;
  /// What libraries hold for themselves; none: 64 MiB on CUDA (cuBLAS on Hopper, forward and backward), else 0.
  std::optional<int64_t> workspace = {};
};

/// Bytes that a training step holds on one rank, from the second step on.
struct MemoryEstimate {
  /// On the device, all through the step. (Buffers such as the statistics of batch norm count as parameters.)
  int64_t parameters = 0;
  /// On the device, when backward has ended.
  int64_t gradients = 0;
  int64_t optimizer = 0;
  /// What is kept for backward when forward has ended.
  int64_t activations = 0;
  /// The most of everything else at one time: results that nobody keeps, gathered units, buffers of collectives,
  /// workspaces, the batch.
  int64_t temporary = 0;
  /// In host memory.
  int64_t host = 0;
  /// The highest sum of what is on the device at one time, and in which part of the step.
  int64_t device_peak = 0;
  StepPart peak_part = StepPart::kForward;
  /// The highest sum of device and host memory at one time. On the CPU they are one.
  int64_t total_peak = 0;
  /// How many parameters the whole model has.
  int64_t num_parameters = 0;
  /// The whole step.
  MemoryTimeline timeline = {};
};

/// Runs a training step without memory, and tells what it would have taken. Nothing is allocated, on no device; a model
/// of any size takes seconds. `batch` gives shapes and dtypes; its tensors may be on any device, meta too.
///
/// An Error names the operator when the step uses one whose results are not known without data.
MemoryEstimate estimate_memory(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& question = {});

/// The same under a strategy that is connected: its options, its number of ranks, its device. Also by
/// `strategy.estimate(...)`.
MemoryEstimate estimate_memory(const Strategy& strategy, const MakeTrainingStep& make, const Batch& batch,
                               MemoryQuestion question = {});

/// The same for a model that a function makes.
///
///     auto estimate = levin::estimate_memory(
///         [] { return levin::models::vit_l_16({.num_classes = 10}); },
///         [](auto& model, const levin::Batch& batch) { return model(batch["image"]); },
///         [](const auto& logits, const levin::Batch& batch) { return levin::cross_entropy(logits, batch["label"]); },
///         batch, {.strategy = "fsdp", .precision = "bf16-mixed", .world_size = 8});
template <class Make, class Forward, class Loss>
MemoryEstimate estimate_memory(Make make, Forward forward, Loss loss, const Batch& batch,
                               const MemoryQuestion& question = {}) {
  return estimate_memory(detail::training_step_of(make, forward, loss), batch, question);
}
template <class Make, class Forward, class Loss>
MemoryEstimate estimate_memory(const Strategy& strategy, Make make, Forward forward, Loss loss, const Batch& batch,
                               MemoryQuestion question = {}) {
  return estimate_memory(strategy, detail::training_step_of(make, forward, loss), batch, std::move(question));
}

}  // namespace levin
