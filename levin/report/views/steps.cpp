#include "levin/report/views/steps.h"

#include <algorithm>
#include <limits>

namespace levin::report {
namespace {

constexpr Ns kNever = std::numeric_limits<Ns>::max();

Part part_of(const DeviceEvent& event) {
  if (event.kind == DeviceKind::kMemcpy) return Part::kMemcpy;
  if (event.kind == DeviceKind::kMemset) return Part::kMemset;
  return event.is_communication ? Part::kCommunication : Part::kKernel;
}

std::array<Ranges, kParts> unions_of(const TraceEvents& trace) {
  std::array<Ranges, kParts> unions;
  const auto add = [&](Part part, Ns start, Ns duration) {
    unions[static_cast<size_t>(part)].push_back({start, start + duration});
  };
  for (const auto& event : trace.device) add(part_of(event), event.start, event.duration);
  for (const auto& call : trace.calls) add(Part::kRuntime, call.start, call.duration);
  for (const auto& span : trace.host) {
    if (span.kind == HostKind::kDataLoader) add(Part::kDataLoader, span.start, span.duration);
    if (span.kind == HostKind::kCollective) add(Part::kCommunication, span.start, span.duration);
    const bool is_work = span.kind == HostKind::kOperator || span.kind == HostKind::kOptimizer;
    if (is_work && !span.is_annotation) add(Part::kCpu, span.start, span.duration);
  }
  for (auto& ranges : unions) ranges = merge(std::move(ranges));
  return unions;
}

std::vector<Step> host_steps(const TraceEvents& trace) {
  std::vector<Step> steps;
  Ns first = kNever, last = std::numeric_limits<Ns>::min();
  uint32_t thread = 0;
  for (const auto& span : trace.host) {
    if (span.kind == HostKind::kStep)
      steps.push_back({.name = trace.name(span.name),
                       .start = span.start,
                       .end = span.end(),
                       .host_start = span.start,
                       .host_end = span.end(),
                       .thread = span.thread});
    if (span.kind == HostKind::kAnnotation || span.kind == HostKind::kModule) continue;
    if (first == kNever) thread = span.thread;
    first = std::min(first, span.start);
    last = std::max(last, span.end());
  }
  if (steps.empty()) {
    // A trace of the device alone has no host spans.
    if (first == kNever) {
      first = trace.start;
      last = trace.end;
    }
    steps.push_back(
        {.name = "0", .start = first, .end = last, .host_start = first, .host_end = last, .thread = thread});
  }
  std::stable_sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.start < b.start; });
  return steps;
}

struct DeviceTime {
  Ns first = kNever, last = 0;
  uint64_t count = 0;
};

// The step whose host span holds each runtime call; kNone for none.
std::vector<uint32_t> step_of_calls(const TraceEvents& trace, const std::vector<Step>& steps) {
  std::vector<uint32_t> out(trace.calls.size(), kNone);
  size_t at = 0;
  for (size_t i = 0; i < trace.calls.size(); ++i) {
    const auto& call = trace.calls[i];
    while (at < steps.size() && call.start >= steps[at].host_end) ++at;
    if (at == steps.size()) break;
    if (call.start >= steps[at].host_start && call.end() <= steps[at].host_end) out[i] = static_cast<uint32_t>(at);
  }
  return out;
}

// A step lasts until its device work is done; the next begins there.
void stretch(const TraceEvents& trace, std::vector<Step>& steps, const std::vector<DeviceTime>& times,
             const std::vector<uint32_t>& step_of_call) {
  Ns previous = steps[0].start;
  if (times[0].count > 0) {
    for (const auto& event : trace.device) {
      const bool in_step = event.launch != kNone && step_of_call[event.launch] != kNone;
      if (!in_step && event.end() < times[0].first) previous = std::max(previous, event.end());
    }
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    auto& step = steps[i];
    step.start = std::max(previous, step.host_start);
    step.end = std::max(step.host_end, times[i].count > 0 ? times[i].last : step.start);
    step.end = std::max(step.end, step.start);
    step.device_events = times[i].count;
    previous = step.end;
  }
}

// The capture may end before the device work of the last steps is done.
size_t drop_tail(std::vector<Step>& steps) {
  const size_t before = steps.size();
  size_t keep = before;
  while (keep > 0 && steps[keep - 1].device_events == 0) --keep;
  if (keep == 0) return 0;
  const auto count = [&](size_t i) { return static_cast<double>(steps[i].device_events); };
  if (keep > 1 && count(keep - 2) * 0.8 > count(keep - 1)) --keep;
  steps.resize(keep);
  return before - keep;
}

void add_device_work(const TraceEvents& trace, StepView& view) {
  const auto step_of_call = step_of_calls(trace, view.steps);
  std::vector<DeviceTime> times(view.steps.size());
  bool any = false;
  for (const auto& event : trace.device) {
    if (event.launch == kNone || step_of_call[event.launch] == kNone) continue;
    auto& time = times[step_of_call[event.launch]];
    time.first = std::min(time.first, event.start);
    time.last = std::max(time.last, event.end());
    ++time.count;
    any = true;
  }
  if (!any) return;
  stretch(trace, view.steps, times, step_of_call);
  if (view.steps.size() > 1) view.dropped = drop_tail(view.steps);
}

void divide(StepView& view) {
  for (auto& step : view.steps) {
    Ranges free{{step.start, step.end}};
    free = merge(std::move(free));
    for (size_t i = 0; i + 1 < kParts; ++i) {
      Ranges taken;
      for (const auto& range : free) {
        const auto& all = view.unions[i];
        auto at = std::lower_bound(all.begin(), all.end(), range.start,
                                   [](const Range& r, Ns time) { return r.end <= time; });
        for (; at != all.end() && at->start < range.end; ++at)
          taken.push_back({std::max(at->start, range.start), std::min(at->end, range.end)});
      }
      step.parts[i] = length(taken);
      free = subtract(free, taken);
    }
    step.parts[kParts - 1] = length(free);
    for (size_t i = 0; i < kParts; ++i) view.average[i] += static_cast<double>(step.parts[i]);
    view.average_total += static_cast<double>(step.total());
  }
  const auto count = static_cast<double>(view.steps.size());
  for (auto& part : view.average) part /= count;
  view.average_total /= count;
}

void add_overlaps(StepView& view) {
  const auto& kernels = view.unions[static_cast<size_t>(Part::kKernel)];
  const auto& computation = kernels.empty() ? view.unions[static_cast<size_t>(Part::kCpu)] : kernels;
  const auto& communication = view.unions[static_cast<size_t>(Part::kCommunication)];
  const auto both = intersect(computation, communication);
  for (const auto& step : view.steps) {
    Overlap overlap{.computation = length_in(computation, step.start, step.end),
                    .communication = length_in(communication, step.start, step.end),
                    .overlap = length_in(both, step.start, step.end)};
    overlap.other = step.total() + overlap.overlap - overlap.computation - overlap.communication;
    view.overlaps.push_back(overlap);
  }
}

}  // namespace

const char* to_string(Part part) {
  constexpr std::array kNames{"Kernel",  "Memcpy",     "Memset",   "Communication",
                              "Runtime", "DataLoader", "CPU Exec", "Other"};
  return kNames[static_cast<size_t>(part)];
}

StepView view_steps(const TraceEvents& trace) {
  StepView view;
  view.unions = unions_of(trace);
  view.steps = host_steps(trace);
  add_device_work(trace, view);
  divide(view);
  add_overlaps(view);
  return view;
}

}  // namespace levin::report
