#pragma once

#include <string>
#include <vector>

#include "levin/report/trace/op_tree.h"

namespace levin::report {

/// A unit of the model, under the unit that called it. Times, FLOPs and bytes are with the units inside; `self`
/// without.
struct ModuleRow {
  std::string name;
  /// A row before this one, or -1.
  int parent = -1;
  int depth = 0;
  uint64_t occurrences = 0, operators = 0;
  Ns host_total = 0, host_self = 0;
  Ns forward_device = 0, backward_device = 0, device_self = 0;
  double flops = 0, bytes = 0;
  /// Of memory: allocated in it, and what of that was not released in it.
  int64_t allocated = 0, increase = 0;

  Ns device_total() const { return forward_device + backward_device; }
};

/// Backward work belongs to the unit whose forward has the same sequence number.
std::vector<ModuleRow> view_modules(const TraceEvents& trace, const OpTree& tree);

}  // namespace levin::report
