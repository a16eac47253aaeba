#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/memory/estimate.h"
#include "levin/memory/groups.h"
#include "levin/memory/meter.h"

namespace levin::detail {

/// A training step as it happened without memory: every storage that came and went, and whose it was.
struct StepTrace {
  enum class Kind : uint8_t { kOther, kParameter, kInput, kGradient, kUnitInput };
  struct Owner {
    Kind kind = Kind::kOther;
    /// The parameter that a gradient is of, the checkpointed unit whose input it is; -1: none.
    int of = -1;
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
    /// Number of units: of none.
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

/// What the optimizer of that name says of itself. An unknown name is an Error with the nearest.
OptimizerTraits optimizer_traits(const std::string& name, std::optional<c10::ScalarType> moments = {});
/// An Error, in the words of the strategy, for what its setup would refuse.
void check_possible(const std::string& strategy, const StateLayout& layout, const PrecisionPlan& precision,
                    const std::string& optimizer, const OptimizerTraits& traits);
/// Bytes of each tensor that it keeps for a parameter whose elements have so many bytes.
std::vector<int64_t> optimizer_tensors(const OptimizerTraits& traits, const std::vector<int64_t>& sizes, int64_t width);

struct ShardingPlan;
StateLayout layout_of(const ShardingPlan& plan, int world);

/// Bytes of an element of a parameter as it is kept and computed with, of a gradient on its way and as it is kept, and
/// of what the optimizer keeps.
struct StateWidths {
  int64_t kept, computed, reduced, gradient, optimizer;
};
StateWidths state_widths(const StateLayout& layout, const PrecisionPlan& precision);
/// Of parameters while they are computed with; none: as they are made.
std::optional<c10::ScalarType> computed_dtype(const StateLayout& layout, const PrecisionPlan& precision);
/// Whether a ShardGroup stands between the parameters and the model, and has something to do.
bool is_divided(const StateLayout& layout, const PrecisionPlan& precision);
GroupRules group_rules(const StateLayout& layout, const PrecisionPlan& precision, c10::DeviceType device);

}  // namespace levin::detail
