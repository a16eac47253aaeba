#pragma once

#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include "levin/core/batch.h"
#include "levin/core/each_tensor.h"
#include "levin/core/error.h"
#include "levin/nn/policy.h"
#include "levin/optim/optimizer.h"
#include "levin/precision/precision.h"
#include "levin/profilers/memory_timeline.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/layout.h"

namespace levin {

/// What a forward returns: a Tensor, or a tuple, vector or struct of them (levin/core/each_tensor.h).
class ForwardOutput {
 public:
  ForwardOutput() = default;
  template <class T>
  requires(!std::same_as<std::remove_cvref_t<T>, ForwardOutput> && TensorNest<std::remove_cvref_t<T>>)
      ForwardOutput(T&& value)
      : value_(std::forward<T>(value)), each_([](std::any& held, const std::function<void(Tensor&)>& f) {
          each_tensor(*std::any_cast<std::remove_cvref_t<T>>(&held), f);
        }) {}

  /// The value, by the type that forward returned.
  template <class T>
  const T& as() const {
    const auto* value = std::any_cast<T>(&value_);
    LEVIN_CHECK(value, "[estimate_memory] forward did not return what loss takes; they need one type");
    return *value;
  }
  operator const Tensor&() const { return as<Tensor>(); }
  void each_tensor_in(const std::function<void(Tensor&)>& f) {
    if (each_) each_(value_, f);
  }

 private:
  std::any value_;
  void (*each_)(std::any&, const std::function<void(Tensor&)>&) = nullptr;
};

/// A model and its training step, made again for every estimate, on tensors without memory.
struct TrainingStep {
  std::shared_ptr<torch::nn::Module> module;
  std::function<ForwardOutput(const Batch&)> forward;
  std::function<Tensor(const ForwardOutput& output, const Batch&)> loss;
};
using MakeTrainingStep = std::function<TrainingStep()>;

/// How a strategy lays out state over that many ranks. By name or by its options, as levin/strategies/choice.h takes
/// it; an unknown name is an Error with the nearest. With `offload`, the strategy of that name has as much state in
/// host memory as it can.
///
///     state_layout("fsdp", 8);
///     state_layout(FsdpOptions{.sharding_strategy = "hybrid", .hybrid_size = 8}, 64);
StateLayout state_layout(const StrategyChoice& strategy, int ranks = 1, bool offload = false);

/// Bytes of state per parameter on one rank, on the device and in host memory.
struct StateBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0;
  double host = 0;
  double device() const { return parameters + gradients + optimizer; }
};
StateBytes bytes_per_parameter(const StateLayout& layout, const PrecisionPlan& precision, const std::string& optimizer);

/// Names that MemoryQuestion::optimizer takes: "adamw", "sgd_momentum", ...
std::vector<std::string> known_memory_optimizers();

namespace detail {

/// A model as its maker returned it, called as itself: `model(x)` is its forward. (Torch's own call knows no templated
/// forward, which Sequential and its subclasses have, and a shared_ptr has no call.)
template <class Handle>
class CalledModel final : public Handle {
 public:
  explicit CalledModel(Handle handle) : Handle(std::move(handle)) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    if constexpr (requires(Handle & handle) {
                    requires !std::is_void_v<decltype(handle(std::forward<Args>(args)...))>;
                  })
      return static_cast<Handle&>(*this)(std::forward<Args>(args)...);
    else
      return Handle::operator->()->forward(std::forward<Args>(args)...);
  }
};

template <class Make, class Forward, class Loss>
MakeTrainingStep training_step_of(Make make, Forward forward, Loss loss) {
  return [=]() -> TrainingStep {
    CalledModel model(make());
    std::shared_ptr<torch::nn::Module> module;
    if constexpr (requires { model.ptr(); })
      module = model.ptr();
    else
      module = model;
    using Output = std::remove_cvref_t<decltype(forward(model, std::declval<const Batch&>()))>;
    static_assert(
        TensorNest<Output>,
        "levin: forward returns a Tensor, or a tuple, vector or plain struct of them (levin/core/each_tensor.h)");
    return {module, [model, forward](const Batch& given) mutable -> ForwardOutput { return forward(model, given); },
            [loss](const ForwardOutput& output, const Batch& given) mutable -> Tensor {
              return loss(output.as<Output>(), given);
            }};
  };
}
}  // namespace detail

/// What an estimate is asked about.
struct MemoryQuestion {
  /// A name as state_layout takes it; `layout` takes precedence.
  std::string strategy = "auto";
  std::optional<StateLayout> layout = {};
  std::string precision = "32-true";
  std::string optimizer = "adam";
  /// Of an optimizer of your own, which is asked about in place of `optimizer`: `opt.traits()`.
  std::optional<OptimizerTraits> optimizer_traits = {};
  /// As in optim::AdamOptions: the dtype of exp_avg and exp_avg_sq; none: that of the parameters.
  std::optional<c10::ScalarType> moments_dtype = {};
  int world_size = 1;
  /// Of a pipeline: the rank in it whose stages are asked about; none: as the layout says, by default the first.
  std::optional<int> pipeline_rank = {};
  /// State lives in host memory as far as the strategy can do it.
  bool offload = false;
  /// The device whose kernels and allocator are simulated; it need not be here.
  c10::DeviceType device = c10::DeviceType::CUDA;
  /// Units whose activations are recomputed in backward.
  std::optional<UnitPolicy> checkpointing = {};
  /// Units that repeat (EncoderBlock, Bottleneck) are checkpointed; `checkpointing` takes precedence.
  bool checkpoint_blocks = false;
  /// What checkpointed units keep is offloaded to host memory.
  bool offload_activations = false;
  /// Units that are gathered one at a time; none: those that repeat, or the whole model.
  std::optional<UnitPolicy> units = {};
  /// Micro-batches of one optimizer step; ranks communicate in the last one.
  int accumulate = 1;
  /// What libraries hold for themselves; none: on CUDA 32 MiB (cuBLAS on Hopper) for forward and 32 MiB for backward
  /// where torch multiplies matrices in them, else 0. Products of Levin's layers in 16 bits hold nothing.
  std::optional<int64_t> workspace = {};
};

/// Predicted bytes of a training step on one rank, from the second step on.
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
  /// Parameters of the full model.
  int64_t num_parameters = 0;
  /// The whole step.
  MemoryTimeline timeline = {};
};

/// Runs a training step without memory, and tells what it would have allocated. Nothing is allocated on any device; a
/// model of any size takes seconds. `batch` gives shapes and dtypes; its tensors may be on any device, meta too.
///
/// A constructor may load weights from a file: the model is then made with memory on the CPU, and its values are let
/// go. An Error names the operator, the unit and what to write when the step uses one whose results depend on values.
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
