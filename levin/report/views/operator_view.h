#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/report/trace/op_tree.h"

namespace levin::report {

/// A row of the operator view: all calls of one name, or of one name and input shape.
struct OperatorRow {
  uint32_t name = 0, shapes = 0, stack = 0;
  uint64_t calls = 0, stacks = 0;
  Ns device_self = 0, device_total = 0, host_self = 0, host_total = 0;
  Ns tensor_core_self = 0, tensor_core_total = 0;
  bool could_use_tensor_cores = false;
  std::optional<double> flops;
};

/// Sorted by device self time, or host self time where there is no device work.
std::vector<OperatorRow> view_operators(const TraceEvents& trace, const OpTree& tree, bool by_shape);

/// A row of the kernel view.
struct KernelRow {
  uint32_t name = 0;
  /// By properties only: the operator (a name, kNone for none) and the launch.
  uint32_t operator_name = kNone;
  KernelProperties properties;
  uint64_t calls = 0;
  Ns total = 0, max = 0, min = 0;
  /// Weighted by time.
  double blocks_per_sm = 0, occupancy = 0;
  bool uses_tensor_cores = false, operator_could_use_tensor_cores = false, is_communication = false;
};

/// Sorted by total time.
std::vector<KernelRow> view_kernels(const TraceEvents& trace, const OpTree& tree, bool by_properties);

/// Copies and fills by name.
struct TransferRow {
  uint32_t name = 0;
  DeviceKind kind = DeviceKind::kMemcpy;
  uint64_t calls = 0;
  Ns total = 0;
  int64_t bytes = 0;
};

std::vector<TransferRow> view_transfers(const TraceEvents& trace);

}  // namespace levin::report
