#pragma once

#include <string_view>
#include <vector>

#include "levin/trainer/run/run.h"

namespace levin::detail {

// What a step of the module is made of.

/// The next batch, on its device; empty at the end.
AnyBatch next_batch(Run& run, BatchSource& source, const StepInfo& at);

/// A step of the module under the care of the strategy, in the run's precision.
template <class F>
StepOutput run_step(Run& run, F&& step) {
  auto& around = run.model.wrapped->setup_call();
  if (around.plain) [[likely]]
    return step();
  StepOutput output;
  {
    CallScope scope(around);
    output = step();
    scope.leave();
  }
  if (!output.loss.defined() || !at::GradMode::is_enabled()) return output;
  std::vector<Tensor*> outputs{&output.loss};
  finish_call(around, outputs);
  return output;
}

void backward(Run& run, const Tensor& loss);
void manual_backward(Run& run, const Tensor& loss);
void clip_gradients(Run& run, Optimizer& optimizer, double clip_val, std::string_view algorithm);

}  // namespace levin::detail
