#include "levin/trainer/callbacks/tuning/memory_question.h"

#include "levin/core/error.h"
#include "levin/memory/step.h"
#include "levin/strategies/strategy.h"
#include "levin/trainer/callbacks/memory_report.h"
#include "levin/trainer/context.h"
#include "levin/trainer/train_module.h"

namespace levin::detail {

std::optional<StateLayout> memory_layout(TrainerContext& run) {
  try {
    return run.fabric().strategy().layout();
  } catch (const Error&) {
    return {};
  }
}

MemoryQuestion memory_question(TrainerContext& run) {
  const auto& plan = run.fabric().plan();
  const auto& optimizers = run.optimizers();
  LEVIN_CHECK(optimizers.size() == 1, "the run has ", optimizers.size(), " optimizers, a prediction is for one");
  return {.strategy = plan.strategy.name(),
          .layout = run.fabric().strategy().layout(),
          .precision = run.plan().fabric.precision,
          .optimizer = optimizers.front().name(),
          .optimizer_traits = optimizers.front().traits(),
          .world_size = plan.world_size(),
          .device = run.fabric().device().type(),
          .accumulate = static_cast<int>(run.plan().accumulate)};
}

std::optional<MemoryEstimate> predict_memory(TrainerContext& run, const AnyBatch& batch,
                                             const MakeTrainingStep& make_step) {
  const auto* predicts = dynamic_cast<const PredictsMemory*>(&run.module());
  if (!make_step && !predicts) return std::nullopt;
  LEVIN_CHECK(dynamic_cast<TrainModule*>(&run.module()), "batches of a type of your own; give it as .predicted");
  const auto make = make_step ? make_step : [=] { return predicts->make_step(); };
  const auto question = memory_question(run);
  auto predicted = estimate_memory(make, batch.get<Batch>(), question);
  return run.module().automatic_optimization ? with_gradients_in_forward(std::move(predicted), question)
                                             : std::move(predicted);
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
