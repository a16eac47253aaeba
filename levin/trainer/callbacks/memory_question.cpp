#include "levin/trainer/callbacks/memory_question.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "levin/core/error.h"
#include "levin/strategies/sharding_options.h"
#include "levin/trainer/context.h"

namespace levin::detail {
namespace {

struct LayoutOf {
  int ranks;
  StateLayout operator()(const std::string& name) const { return state_layout(name, ranks); }
  StateLayout operator()(const DdpOptions&) const { return state_layout("ddp", ranks); }
  StateLayout operator()(const auto& options) const { return state_layout(options, ranks); }
};

/// Units and checkpointing that strategies are told of.
struct AskUnits {
  MemoryQuestion& question;
  void operator()(const std::string&) const {}
  void operator()(const DdpOptions&) const {}
  void operator()(const auto& options) const {
    question.units = options.auto_wrap_policy;
    question.checkpointing = options.activation_checkpointing_policy;
    if constexpr (requires { options.activation_cpu_offload; })
      question.offload_activations = question.checkpointing && options.activation_cpu_offload;
    if constexpr (requires { options.cpu_checkpointing; })
      question.offload_activations = question.checkpointing && options.cpu_checkpointing;
  }
};

/// By the names of estimates: "AdamW" is "adamw".
std::string memory_optimizer(const Optimizer& optimizer) {
  auto name = optimizer.name();
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto* momentum = optimizer.impl()->find_hyper(0, "momentum");
  return name == "sgd" && momentum && *momentum > 0 ? "sgd_momentum" : name;
}

}  // namespace

std::optional<StateLayout> memory_layout(TrainerContext& run) {
  try {
    const auto& plan = run.fabric().plan();
    return std::visit(LayoutOf{plan.world_size()}, plan.strategy.value());
  } catch (const Error&) {
    return {};
  }
}

MemoryQuestion memory_question(TrainerContext& run) {
  const auto& plan = run.fabric().plan();
  const auto& optimizers = run.optimizers();
  LEVIN_CHECK(optimizers.size() == 1, "the run has ", optimizers.size(), " optimizers, a prediction is for one");
  MemoryQuestion question{.strategy = plan.strategy.name(),
                          .layout = std::visit(LayoutOf{plan.world_size()}, plan.strategy.value()),
                          .precision = run.plan().fabric.precision,
                          .optimizer = memory_optimizer(optimizers.front()),
                          .world_size = plan.world_size(),
                          .device = run.fabric().device().type(),
                          .accumulate = static_cast<int>(run.accumulate_grad_batches())};
  std::visit(AskUnits{question}, plan.strategy.value());
  return question;
}

MemoryEstimate with_gradients_in_forward(MemoryEstimate estimate, const MemoryQuestion& question) {
  // Buckets are there all the time, and so are gradients that are accumulated.
  if ((question.layout && question.layout->gradient_buckets) || question.accumulate > 1) return estimate;
  auto part = StepPart::kForward;
  for (auto& point : estimate.timeline.points) {
    // Up to the point where backward begins.
    if (part != StepPart::kForward) break;
    part = point.part;
    point.bytes += estimate.gradients, point.peak += estimate.gradients;
    if (point.peak > estimate.device_peak) estimate.device_peak = point.peak, estimate.peak_part = StepPart::kForward;
  }
  return estimate;
}

}  // namespace levin::detail
