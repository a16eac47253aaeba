#pragma once

#include <vector>

#include "levin/report/trace/trace_events.h"

namespace levin::report {

/// A stretch of time, and sets of them: sorted, without overlap.
struct Range {
  Ns start = 0, end = 0;
};
using Ranges = std::vector<Range>;

/// The union of any ranges. Empty ones vanish.
Ranges merge(Ranges ranges);
Ranges intersect(const Ranges& a, const Ranges& b);
Ranges subtract(const Ranges& a, const Ranges& b);
Ns length(const Ranges& ranges);
/// Of `ranges` inside [start, end].
Ns length_in(const Ranges& ranges, Ns start, Ns end);

}  // namespace levin::report
