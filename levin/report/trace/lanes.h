#pragma once

#include <string>
#include <vector>

#include "levin/report/views/steps.h"

namespace levin::report {

/// Words for the kinds of spans of a lane, in the order of their numbers.
inline constexpr const char* kLaneKinds[] = {"step",   "op",     "annotation", "runtime",   "kernel", "communication",
                                             "memcpy", "memset", "dataloader", "optimizer", "module", "sync"};
enum class LaneKind : uint8_t {
  kStep,
  kOperator,
  kAnnotation,
  kRuntime,
  kKernel,
  kCommunication,
  kMemcpy,
  kMemset,
  kDataLoader,
  kOptimizer,
  kModule,
  kSync
};

struct LaneSpan {
  Ns start = 0, duration = 0;
  uint32_t name = 0;
  /// How many short spans it stands for.
  uint32_t count = 1;
  uint16_t row = 0;
  LaneKind kind = LaneKind::kOperator;
};

/// A thread of the host or a stream of a device.
struct Lane {
  std::string name, group;
  int rows = 0;
  std::vector<LaneSpan> spans;
};

struct Lanes {
  std::vector<Lane> lanes;
  /// Spans shorter than this were drawn together; 0 when none were. One step in the middle is whole.
  Ns bucket = 0;
};

/// The timeline, with at most about `most` spans.
Lanes view_lanes(const TraceEvents& trace, const StepView& steps, size_t most = 30000);

/// Whether a call of the runtime waits for the device.
bool is_sync(std::string_view call);

}  // namespace levin::report
