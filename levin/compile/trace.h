#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/compile/graph.h"

namespace levin::compile {

struct TraceOptions {
  /// How much work the device has been given so far: work that no operator stands for is found by it. May be empty.
  std::function<int64_t()> work = {};
  /// Called when memory that is older than the step is met for the first time, before the step writes it.
  std::function<void(const Tensor& whole)> on_entering = {};
};

struct TracedStep {
  Graph graph;
  /// Why the graph does not stand for the step; empty: it does.
  std::string reason;
};

/// Runs `step` and writes down all that it does to tensors, below autograd. What the step throws passes on; an error of
/// an operator has its name in front.
TracedStep trace(const std::function<void()>& step, const TraceOptions& options = {});

}  // namespace levin::compile
