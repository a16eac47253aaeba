#include "levin/report/views/idle.h"

#include <algorithm>
#include <cstddef>

#include "levin/report/trace/lanes.h"

namespace levin::report {
namespace {

// Every moment in which a device works.
Ranges device_busy(const TraceEvents& trace) {
  Ranges busy;
  busy.reserve(trace.device.size());
  for (const auto& event : trace.device) busy.push_back({event.start, event.end()});
  return merge(std::move(busy));
}

std::vector<const RuntimeCall*> syncs_of(const TraceEvents& trace) {
  std::vector<char> is(trace.names.size(), 2);
  std::vector<const RuntimeCall*> syncs;
  for (const auto& call : trace.calls) {
    if (is[call.name] == 2) is[call.name] = is_sync(trace.name(call.name));
    if (is[call.name]) syncs.push_back(&call);
  }
  return syncs;
}

class IdleReader {
 public:
  IdleReader(const TraceEvents& trace, const StepView& steps)
      : trace_(trace),
        steps_(steps),
        loader_(steps.unions[static_cast<size_t>(Part::kDataLoader)]),
        communication_(steps.unions[static_cast<size_t>(Part::kCommunication)]),
        checkpoints_(checkpoint_ranges(trace)),
        syncs_(syncs_of(trace)) {}

  IdleView read() {
    const auto busy = device_busy(trace_);
    for (const auto& step : steps_.steps) {
      view_.of += step.total();
      for (const auto& gap : subtract({{step.start, step.end}}, busy)) add(gap);
    }
    return view_;
  }

 private:
  void add(const Range& gap) {
    view_.total += gap.end - gap.start;
    Ranges rest{gap};
    rest = take(IdleCause::kDataLoader, loader_, std::move(rest));
    rest = take(IdleCause::kCheckpoint, checkpoints_, std::move(rest));
    rest = take(IdleCause::kCommunication, communication_, std::move(rest));
    view_.causes[static_cast<size_t>(cause_of(gap))] += length(rest);
  }

  Ranges take(IdleCause cause, const Ranges& ranges, Ranges rest) {
    Ranges inside;
    for (const auto& range : rest) {
      auto at = std::lower_bound(ranges.begin(), ranges.end(), range.start,
                                 [](const Range& r, Ns time) { return r.end <= time; });
      for (; at != ranges.end() && at->start < range.end; ++at)
        inside.push_back({std::max(at->start, range.start), std::min(at->end, range.end)});
    }
    view_.causes[static_cast<size_t>(cause)] += length(inside);
    return subtract(rest, inside);
  }

  // The first device work after the gap: when was it launched?
  const DeviceEvent* next_work(Ns time) const {
    const auto at = std::lower_bound(trace_.device.begin(), trace_.device.end(), time,
                                     [](const DeviceEvent& event, Ns t) { return event.start < t; });
    return at == trace_.device.end() ? nullptr : &*at;
  }

  // A call that waited for the work before the gap: the host could launch nothing meanwhile.
  bool follows_sync(const Range& gap) const {
    const auto after = std::upper_bound(syncs_.begin(), syncs_.end(), gap.start,
                                        [](Ns time, const RuntimeCall* call) { return time < call->start; });
    const auto first = after - std::min<ptrdiff_t>(after - syncs_.begin(), 4);
    return std::any_of(first, after, [&](const RuntimeCall* call) { return call->end() > gap.start; });
  }

  IdleCause cause_of(const Range& gap) const {
    const auto* next = next_work(gap.end);
    if (next == nullptr || next->launch == kNone) return IdleCause::kOther;
    if (follows_sync(gap)) return IdleCause::kSync;
    return trace_.calls[next->launch].start >= gap.start ? IdleCause::kHost : IdleCause::kLaunch;
  }

  const TraceEvents& trace_;
  const StepView& steps_;
  const Ranges &loader_, &communication_;
  Ranges checkpoints_;
  std::vector<const RuntimeCall*> syncs_;
  IdleView view_;
};

}  // namespace

const char* id_of(IdleCause cause) {
  constexpr std::array kIds{"dataloader", "checkpoint", "communication", "sync", "host", "launch", "other"};
  return kIds[static_cast<size_t>(cause)];
}

const char* words_of(IdleCause cause) {
  constexpr std::array kWords{"waiting for the data loader",
                              "saving a checkpoint",
                              "collectives on the host",
                              "the host waited for the device",
                              "the host prepares work",
                              "between launch and start",
                              "not known"};
  return kWords[static_cast<size_t>(cause)];
}

bool is_checkpoint(const std::string& name) {
  return name.find("save_checkpoint") != std::string::npos || name.find("ModelCheckpoint") != std::string::npos;
}

Ranges checkpoint_ranges(const TraceEvents& trace) {
  Ranges ranges;
  for (const auto& span : trace.host) {
    if (span.kind == HostKind::kAnnotation && is_checkpoint(trace.name(span.name)))
      ranges.push_back({span.start, span.end()});
  }
  return merge(std::move(ranges));
}

IdleView view_idle(const TraceEvents& trace, const StepView& steps) {
  if (trace.device.empty()) return {};
  return IdleReader(trace, steps).read();
}

}  // namespace levin::report
