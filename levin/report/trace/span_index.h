#pragma once

#include <functional>
#include <vector>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// Which of some host spans is the innermost around a moment of a thread.
class SpanIndex {
 public:
  /// Of the spans that `is_wanted`. One that overlaps another in part is left out.
  SpanIndex(const TraceEvents& trace, const std::function<bool(uint32_t span)>& is_wanted);

  /// A place in the host spans, or kNone.
  uint32_t at(uint32_t thread, Ns time) const;
  /// The wanted span around a wanted span; kNone without, and for a span that was left out.
  uint32_t parent(uint32_t span) const;
  /// Those that were wanted and fit, in order.
  const std::vector<uint32_t>& spans() const { return spans_; }

 private:
  const TraceEvents& trace_;
  std::vector<uint32_t> spans_;
  std::vector<uint32_t> parents_;   // places in spans_
  std::vector<uint32_t> first_of_;  // by thread: the first place in spans_
};

}  // namespace levin::report
