#pragma once

#include <cstdint>
#include <vector>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// More launches than these wait in no queue of CUDA: the next call blocks until one is done.
inline constexpr int kFullQueue = 1024;

/// A stream, and the launches that wait in its queue: each from its call to the start of its first work.
struct LaunchStream {
  int device = 0;
  uint32_t stream = 0;
  uint64_t launches = 0;
  int longest = 0;
  /// Weighted by time, from the first launch to the last start.
  double mean = 0;
  /// Time with kFullQueue launches or more.
  Ns full = 0;
  struct Point {
    Ns time = 0;
    int length = 0;
  };
  /// At most 1,000 points, peaks kept.
  std::vector<Point> curve;
};

/// Kernels, copies or fills with one name.
struct LaunchRow {
  uint32_t name = 0;
  uint64_t launches = 0;
  /// Their calls on the host, the time from the end of a call to the start of its work, and the work. Sums.
  Ns call = 0, delay = 0, work = 0;
  /// Work that takes less time than its call.
  uint64_t shorter = 0;
};

/// Launches: what the host pays for them, and how long the work waits.
struct LaunchView {
  uint64_t launches = 0, shorter = 0;
  /// Calls over 50 us; work that starts more than 100 us after its call.
  uint64_t slow_calls = 0, late = 0;
  Ns call = 0, delay = 0, median_delay = 0, longest_delay = 0;
  std::vector<LaunchStream> streams;
  /// The most launches first.
  std::vector<LaunchRow> rows;
};

/// Launches whose call and work are both in the trace. Of a graph the first kernel counts.
LaunchView view_launches(const TraceEvents& trace);

/// Work of the device that calls inside a range of the program (user_annotation) launched.
struct AnnotationRow {
  uint32_t name = 0;
  uint64_t occurrences = 0, launches = 0;
  /// Of the ranges; those of ranges inside with the same name count once.
  Ns host = 0;
  /// Work that was launched in no range inside; and with that.
  Ns device_self = 0, device_total = 0;
};

/// The most device time first, then the most time of the host. Steps, loaders and collectives have views of their own.
std::vector<AnnotationRow> view_annotations(const TraceEvents& trace);

}  // namespace levin::report
