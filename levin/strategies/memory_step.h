#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "levin/strategies/memory.h"
#include "levin/strategies/memory_meter.h"

namespace levin::detail {

/// A training step as it happened without memory: every storage that came and went, and whose it was.
struct StepTrace {
  enum class Kind : uint8_t { kOther, kParameter, kInput, kGradient, kUnitInput };
  struct Owner {
    Kind kind = Kind::kOther;
    /// Of a gradient or of a checkpointed unit's input; -1: of no unit.
    int unit = -1;
    /// There when forward ended.
    bool saved = false;
  };
  struct Mark {
    /// Number of events before it.
    size_t at;
    StepPart part;
    int unit;
    bool begins;
  };
  struct Param {
    std::vector<int64_t> sizes;
    int64_t numel;
    int64_t element_size;
    int unit;
    bool trained;
  };

  std::vector<MetaMeter::Event> events;
  /// By id of storage.
  std::vector<Owner> owners;
  std::vector<Mark> marks;
  std::vector<Param> params;
  std::vector<std::string> units;
  /// Buffers of the module.
  int64_t buffers = 0;
  /// Backward has ended.
  size_t backward_end = 0;
};

/// Runs a step. `plan` is how the model computes, with autocast or in a dtype of its own.
StepTrace trace_step(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& question,
                     const PrecisionPlan& plan);

/// What the step takes under a layout.
MemoryEstimate lay_out(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked,
                       const MemoryQuestion& question);

/// State of an optimizer: numbers that it keeps for a tensor of these sizes, whether it counts its steps, and numbers
/// of a parameter's size that a step takes for itself.
struct OptimizerShape {
  std::string name;
  int slots;
  bool counts_steps;
  int temporaries;
  bool factored;
};
const OptimizerShape& optimizer_shape(const std::string& name);
int64_t optimizer_numel(const OptimizerShape& shape, const std::vector<int64_t>& sizes);

/// The dtype in which parameters are kept, computed with, and their gradients kept, in bytes.
struct StateWidths {
  int64_t kept, computed, gradient, optimizer;
};
StateWidths state_widths(const StateLayout& layout, const PrecisionPlan& precision);
/// Whether parameters are there twice: whole, to compute with, and this rank's part beside the optimizer's state.
bool keeps_master(const StateLayout& layout, const PrecisionPlan& precision);

}  // namespace levin::detail
