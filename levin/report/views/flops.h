#pragma once

#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// What an operator computes and moves, by its name and the shapes, types and values of its inputs (record_shapes).
struct OperatorCost {
  double flops = 0;
  /// Inputs read once and outputs written once.
  double bytes = 0;
  /// Bytes of one element of the first input; 0 when the trace does not say.
  int element_bytes = 0;
};

/// Costs of the operators of a trace. Each distinct text is read once.
class FlopCounter {
 public:
  explicit FlopCounter(const TraceEvents& trace) : trace_(trace) {}

  /// Matrix products, convolutions and attention; a multiply-add is two. None for what is no such operator, or has no
  /// shapes.
  std::optional<double> of(const HostSpan& span);
  /// Any operator with shapes.
  std::optional<OperatorCost> cost(const HostSpan& span);

 private:
  struct Entry {
    std::optional<double> flops;
    std::optional<OperatorCost> cost;
    bool has_cost = false;
  };
  bool is_counted(const HostSpan& span);
  Entry& entry(const HostSpan& span);

  const TraceEvents& trace_;
  std::unordered_map<uint64_t, std::vector<std::pair<std::pair<uint32_t, uint32_t>, Entry>>> entries_;
  std::vector<signed char> counted_;  // by name: -1 not asked, 0 no, 1 yes
};

using Shape = std::vector<int64_t>;
/// "[[2, 3], [], [4]]"; a list of tensors is one empty shape. Empty for a text that was shortened.
std::vector<Shape> shapes_of(std::string_view text);

}  // namespace levin::report
