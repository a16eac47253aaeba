#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/memory/estimate.h"
#include "levin/memory/meter.h"

namespace levin::detail {

/// A training step as it happened without memory: every storage that was allocated and freed, and whose it was.
struct StepTrace {
  enum class Kind : uint8_t { kOther, kParameter, kInput, kGradient, kUnitInput };
  struct Owner {
    Kind kind = Kind::kOther;
    /// The parameter that a gradient is of, the checkpointed unit whose input it is; -1: none.
    int of = -1;
    /// There when forward ended; of micro-batches: when one of the forwards did.
    bool saved = false;
  };
  struct Mark {
    /// Number of events before it.
    size_t at;
    StepPart part;
    int unit;
    bool begins;
    /// The unit was computed again in backward; neither its beginning nor its end.
    bool recomputed = false;
    /// Of a backward that begins: gradients are reduced in it.
    bool reduces = true;
  };
  struct Param {
    std::vector<int64_t> sizes;
    int64_t numel;
    int64_t element_size;
    /// Number of units: of none.
    int unit;
    bool trained;
    /// Of experts: how many ranks have them (StateLayout::expert_ranks); 0: it is on all ranks.
    int expert_ranks = 0;
  };

  std::vector<MetaMeter::Event> events;
  /// By id of storage.
  std::vector<Owner> owners;
  std::vector<Mark> marks;
  std::vector<Param> params;
  std::vector<std::string> units;
  /// Elements of all parameters before layers were split over ranks.
  int64_t num_parameters = 0;
  /// Buffers of the module.
  int64_t buffers = 0;
  /// Backward has ended.
  size_t backward_end = 0;
  /// Torch multiplied matrices: cuBLAS holds a workspace for the thread of each. Levin's products hold none.
  bool torch_products_in_forward = false, torch_products_in_backward = false;
};

/// Runs a step. `plan` is how the model computes, with autocast or in a dtype of its own.
StepTrace trace_step(const MakeTrainingStep& make, const Batch& batch, const MemoryQuestion& question,
                     const PrecisionPlan& plan);

}  // namespace levin::detail
