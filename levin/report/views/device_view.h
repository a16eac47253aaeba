#pragma once

#include <optional>
#include <vector>

#include "levin/report/trace/op_tree.h"
#include "levin/report/views/steps.h"

namespace levin::report {

/// Fractions of 1. One is missing when the trace does not say.
struct GpuSummary {
  int device = 0;
  DeviceInfo info;
  double utilization = 0;
  std::optional<double> sm_efficiency, occupancy, tensor_core_time;
  int64_t peak_allocated = -1;
  /// Utilization in buckets of a power of ten microseconds; the last may be longer.
  Ns curve_start = 0, bucket = 0;
  std::vector<double> curve;
};

/// Times of kernels by tensor cores.
struct TensorCoreTimes {
  /// All kernels; those of operators; those of operators that could use tensor cores.
  Ns all = 0, of_operators = 0, of_eligible = 0;
  /// Of them, on tensor cores.
  Ns all_used = 0, of_operators_used = 0, of_eligible_used = 0;
  /// The same by the list of the old plugin.
  Ns all_used_compat = 0, of_operators_used_compat = 0;
  /// Of `of_eligible`: kernels in TF32, and kernels that only change the memory format of images.
  Ns tf32 = 0, memory_format = 0;
  /// Of `of_eligible`: what is not on tensor cores, changes no format and has no inputs of 16 bits and less; and
  /// kernels of operators whose inputs are known to be of 32 bits and more.
  Ns of_slow = 0, of_float = 0;
};

std::vector<GpuSummary> summarize_gpus(const TraceEvents& trace, const OpTree& tree, const StepView& steps);
TensorCoreTimes tensor_core_times(const TraceEvents& trace, const OpTree& tree);

/// A kernel of a replayed CUDA graph: its operators ran when it was captured.
bool is_replayed(const TraceEvents& trace, const DeviceEvent& event);

/// The host span that launched device work, as the tree has it; kNone for the root of a thread.
uint32_t owner_of(const TraceEvents& trace, const OpTree& tree, const DeviceEvent& event);

}  // namespace levin::report
