#pragma once

#include <istream>
#include <map>
#include <memory>
#include <vector>

#include "levin/profilers/graph_units.h"

namespace levin::detail {

/// The units of the kernels of a trace that replays of graphs launched.
class GraphKernels {
 public:
  /// Reads a trace as Kineto writes it.
  explicit GraphKernels(std::istream& trace);

  bool empty() const { return owners_.empty(); }
  /// What is to stand in the arguments of a kernel: kernels are numbered as the trace has them. Nothing for most.
  std::string arguments(int64_t kernel) const;

 private:
  struct Owned {
    std::shared_ptr<const GraphUnits> graph;
    GraphUnits::Owner owner;
  };
  std::map<int64_t, Owned> owners_;
};

/// The text of a field in a line of Kineto's: what follows `"name": `, up to a comma, or the quoted text.
std::string_view trace_field(std::string_view line, std::string_view name);
double trace_number(std::string_view text);
/// Nanoseconds out of microseconds with up to three decimals, exact: a double cannot hold those of a clock.
int64_t trace_time(std::string_view text);
inline constexpr std::string_view kKernelLine = "\"cat\": \"kernel\"";

}  // namespace levin::detail
