#include "levin/report/trace/span_index.h"

#include <algorithm>

namespace levin::report {

SpanIndex::SpanIndex(const TraceEvents& trace, const std::function<bool(uint32_t)>& is_wanted) : trace_(trace) {
  first_of_.assign(trace.tracks.size() + 1, 0);
  std::vector<uint32_t> stack;
  uint32_t thread = kNone;
  for (uint32_t i = 0; i < trace.host.size(); ++i) {
    if (!is_wanted(i)) continue;
    const auto& span = trace.host[i];
    if (span.thread != thread) stack.clear();
    thread = span.thread;
    while (!stack.empty() && span.start >= trace.host[spans_[stack.back()]].end()) stack.pop_back();
    if (!stack.empty() && span.end() > trace.host[spans_[stack.back()]].end()) continue;
    parents_.push_back(stack.empty() ? kNone : stack.back());
    stack.push_back(static_cast<uint32_t>(spans_.size()));
    spans_.push_back(i);
    ++first_of_[thread + 1];
  }
  for (size_t i = 1; i < first_of_.size(); ++i) first_of_[i] += first_of_[i - 1];
}

uint32_t SpanIndex::at(uint32_t thread, Ns time) const {
  const auto begin = spans_.begin() + first_of_[thread], end = spans_.begin() + first_of_[thread + 1];
  const auto after =
      std::upper_bound(begin, end, time, [&](Ns t, uint32_t span) { return t < trace_.host[span].start; });
  if (after == begin) return kNone;
  auto place = static_cast<uint32_t>(after - spans_.begin() - 1);
  while (place != kNone && trace_.host[spans_[place]].end() <= time) place = parents_[place];
  return place == kNone ? kNone : spans_[place];
}

uint32_t SpanIndex::parent(uint32_t span) const {
  const auto at = std::lower_bound(spans_.begin(), spans_.end(), span);
  if (at == spans_.end() || *at != span) return kNone;
  const auto parent = parents_[static_cast<size_t>(at - spans_.begin())];
  return parent == kNone ? kNone : spans_[parent];
}

}  // namespace levin::report
