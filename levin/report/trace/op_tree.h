#pragma once

#include <vector>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// What an operator or a named range did itself and with what it called. One for each host span.
struct HostNode {
  /// The span around it, a place in the host spans; kNone at the top of a thread.
  uint32_t parent = kNone;
  /// Not itself, when it is folded into its parent: a lone child with the name of its operator parent.
  uint32_t folded_into = kNone;
  Ns host_self = 0, device_self = 0, device_total = 0;
  Ns tensor_core_self = 0, tensor_core_total = 0;
  /// It is in the tree: not a plain annotation, not a unit, and inside its parent.
  bool is_in_tree = false;
  /// It is a row of the operator view.
  bool is_listed = false;
  bool could_use_tensor_cores = false;
  /// It could use tensor cores, and nothing it calls could.
  bool is_lowest_eligible = false;
};

struct OpTree {
  std::vector<HostNode> nodes;
  /// Spans that overlap their neighbours in part, and are not in the tree.
  uint64_t dropped = 0;

  /// The node that stands for a span: itself, or what it was folded into.
  uint32_t standing_for(uint32_t span) const {
    return nodes[span].folded_into == kNone ? span : nodes[span].folded_into;
  }
};

/// The host spans must be sorted by thread, start and end, as read_trace leaves them.
OpTree build_op_tree(const TraceEvents& trace);

/// Of each name of the trace, whether a kernel of that name uses tensor cores.
std::vector<char> tensor_core_names(const TraceEvents& trace, bool tb_compat);

}  // namespace levin::report
