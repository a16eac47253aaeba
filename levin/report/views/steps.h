#pragma once

#include <array>
#include <string>
#include <vector>

#include "levin/report/trace/ranges.h"

namespace levin::report {

/// What a moment of a step counts as: the first of these that covers it.
enum class Part { kKernel, kMemcpy, kMemset, kCommunication, kRuntime, kDataLoader, kCpu, kOther };
inline constexpr size_t kParts = 8;
/// "Kernel", "CPU Exec".
const char* to_string(Part part);

using Parts = std::array<Ns, kParts>;

struct Step {
  std::string name;
  Ns start = 0, end = 0;
  /// The span on the host; device work may end after it.
  Ns host_start = 0, host_end = 0;
  /// Of the span on the host.
  uint32_t thread = 0;
  Parts parts{};
  uint64_t device_events = 0;

  Ns total() const { return end - start; }
};

/// Time of computation and communication in a step; their sum less the overlap, and `other`, is the step.
struct Overlap {
  Ns computation = 0, communication = 0, overlap = 0, other = 0;
};

struct StepView {
  std::vector<Step> steps;
  std::vector<Overlap> overlaps;
  /// The union of the spans of each part, over all threads and devices.
  std::array<Ranges, kParts> unions;
  /// Means over the steps.
  std::array<double, kParts> average{};
  double average_total = 0;
  /// Steps at the end without all of their device work.
  size_t dropped = 0;

  Ns start() const { return steps.front().start; }
  Ns end() const { return steps.back().end; }
  double average_of(Part part) const { return average[static_cast<size_t>(part)]; }
};

/// A step is a span `ProfilerStep#n` and the device work launched in it. Without any there is one step, "0".
StepView view_steps(const TraceEvents& trace);

}  // namespace levin::report
