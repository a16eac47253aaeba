#include <algorithm>
#include <iterator>
#include <map>

#include "levin/report/trace/lanes.h"
#include "levin/report/views/idle.h"

namespace levin::report {
namespace {

const char* kind_of(const DeviceEvent& event) {
  if (event.kind == DeviceKind::kMemcpy) return "memcpy";
  if (event.kind == DeviceKind::kMemset) return "memset";
  return event.is_communication ? "communication" : "kernel";
}

const char* kind_of(const HostSpan& span) {
  if (span.kind == HostKind::kDataLoader) return "dataloader";
  return span.kind == HostKind::kCollective ? "communication" : "op";
}

/// Goes back in time from the end of a step. Everything after `at_` is explained.
class PathFinder {
 public:
  PathFinder(const TraceEvents& trace, const Step& step) : trace_(trace), step_(step), at_(step.end) {
    for (uint32_t i = 0; i < trace.device.size(); ++i) {
      const auto& event = trace.device[i];
      if (event.end() > step.start && event.end() <= step.end) events_.push_back(i);
    }
    std::stable_sort(events_.begin(), events_.end(),
                     [&](uint32_t a, uint32_t b) { return trace.device[a].end() < trace.device[b].end(); });
    for (uint32_t i = 0; i < trace.calls.size(); ++i) {
      const auto& call = trace.calls[i];
      if (call.end() > step.start && call.end() <= step.end && is_sync(trace.name(call.name))) syncs_.push_back(i);
    }
    std::stable_sort(syncs_.begin(), syncs_.end(),
                     [&](uint32_t a, uint32_t b) { return trace.calls[a].end() < trace.calls[b].end(); });
    find_work();
  }

  CriticalPath find() {
    auto thread = step_.thread;
    if (events_.empty()) {
      over_host(step_.start, thread);
    } else {
      over_host_until_device(thread);
    }
    std::reverse(path_.segments.begin(), path_.segments.end());
    path_.step = step_.name;
    path_.total = step_.total();
    return std::move(path_);
  }

 private:
  // From the host at the end of the step to the last device work, then back and forth.
  void over_host_until_device(uint32_t thread) {
    over_host(std::clamp(trace_.device[events_.back()].end(), step_.start, at_), thread);
    while (at_ > step_.start) {
      const auto* event = last_event();
      if (event == nullptr) {
        over_host(step_.start, thread);
        return;
      }
      add(trace_.name(event->name), kind_of(*event), event->start);
      thread = before(*event, thread);
    }
  }

  // What the start of `event` waited for: other device work, or its launch. Returns the thread to follow.
  uint32_t before(const DeviceEvent& event, uint32_t thread) {
    const auto* previous = peek_event();
    const Ns previous_end = previous == nullptr ? step_.start : previous->end();
    const auto* launch = event.launch == kNone ? nullptr : &trace_.calls[event.launch];
    if (launch == nullptr || launch->start <= previous_end) {
      add(launch == nullptr ? "wait" : trace_.name(launch->name), "launch", std::min(previous_end, at_));
      return launch == nullptr ? thread : launch->thread;
    }
    add(trace_.name(launch->name), "launch", launch->start);
    // The host was late. It goes back to the last call in which it waited for the device, or to the start.
    while (!syncs_.empty() && trace_.calls[syncs_.back()].end() > at_) syncs_.pop_back();
    const auto* sync = syncs_.empty() ? nullptr : &trace_.calls[syncs_.back()];
    auto of = launch->thread;
    if (sync == nullptr) {
      over_host(step_.start, of);
      return of;
    }
    over_host(sync->end(), of);
    syncs_.pop_back();
    while (!events_.empty() && trace_.device[events_.back()].end() > at_) events_.pop_back();
    const auto* waited_for = peek_event();
    const Ns until = waited_for == nullptr ? sync->start : std::max(waited_for->end(), sync->start);
    add(trace_.name(sync->name), "sync", until);
    of = sync->thread;
    if (waited_for == nullptr || waited_for->end() < sync->start) {
      const auto* work = peek_event();
      over_host(work == nullptr ? step_.start : work->end(), of);
    }
    return of;
  }

  const DeviceEvent* peek_event() {
    while (!events_.empty() && trace_.device[events_.back()].end() > at_) events_.pop_back();
    return events_.empty() ? nullptr : &trace_.device[events_.back()];
  }
  const DeviceEvent* last_event() {
    const auto* event = peek_event();
    if (event != nullptr) events_.pop_back();
    return event;
  }

  void add(const std::string& name, const char* kind, Ns start) {
    start = std::clamp(start, step_.start, at_);
    if (start == at_) return;
    const Ns duration = at_ - start;
    at_ = start;
    if (!path_.segments.empty() && path_.segments.back().name == name && path_.segments.back().kind == kind) {
      path_.segments.back().start = start;
      path_.segments.back().duration += duration;
      return;
    }
    path_.segments.push_back({.name = name, .kind = kind, .start = start, .duration = duration});
  }

  // The outermost operators of the threads that do the work of the step: its own, those of backward, and those that
  // launch. Loaders and other helpers are left out.
  void find_work() {
    std::vector<char> takes_part(trace_.tracks.size());
    takes_part[step_.thread] = true;
    for (const auto& event : trace_.device) {
      if (event.launch == kNone) continue;
      const auto& call = trace_.calls[event.launch];
      if (call.end() > step_.start && call.start < step_.end) takes_part[call.thread] = true;
    }
    std::vector<char> has_loader(trace_.tracks.size());
    for (const auto& span : trace_.host) {
      if (span.end() <= step_.start || span.start >= step_.end) continue;
      if (span.is_backward) takes_part[span.thread] = true;
      if (span.kind == HostKind::kDataLoader && span.thread != step_.thread) has_loader[span.thread] = true;
    }
    for (const auto& span : trace_.host) {
      const bool is_work =
          span.kind == HostKind::kOperator || span.kind == HostKind::kDataLoader || span.kind == HostKind::kCollective;
      if (!is_work || !takes_part[span.thread] || has_loader[span.thread]) continue;
      if (span.end() <= step_.start || span.start >= step_.end) continue;
      auto& work = work_[span.thread];
      if (work.empty() || span.start >= work.back()->end()) work.push_back(&span);
    }
  }

  // The last operator of a thread that began before now; null without.
  const HostSpan* last_of(const std::vector<const HostSpan*>& work) const {
    const auto after = std::lower_bound(work.begin(), work.end(), at_,
                                        [](const HostSpan* span, Ns time) { return span->start < time; });
    return after == work.begin() ? nullptr : *std::prev(after);
  }

  // The thread whose work ended last before now: the one that runs, or of the others.
  const HostSpan* last_work(uint32_t thread) const {
    const HostSpan* last = nullptr;
    if (const auto found = work_.find(thread); found != work_.end()) last = last_of(found->second);
    if (last != nullptr && last->end() >= at_) return last;
    for (const auto& [other, work] : work_) {
      const auto* const span = other == thread ? nullptr : last_of(work);
      if (span != nullptr && (last == nullptr || std::min(span->end(), at_) > last->end())) last = span;
    }
    return last;
  }

  // The time of the host down to `start`. Where its thread does nothing, it waits for the one that does: forward and
  // backward run on two.
  void over_host(Ns start, uint32_t& thread) {
    start = std::clamp(start, step_.start, at_);
    while (at_ > start) {
      const auto* const span = last_work(thread);
      if (span == nullptr || span->end() <= start) break;
      if (span->end() < at_) add("host", "host", span->end());
      thread = span->thread;
      add(trace_.name(span->name), kind_of(*span), std::max(span->start, start));
    }
    add("host", "host", start);
  }

  const TraceEvents& trace_;
  const Step& step_;
  Ns at_;
  std::vector<uint32_t> events_, syncs_;
  std::map<uint32_t, std::vector<const HostSpan*>> work_;  // by thread, in order
  CriticalPath path_;
};

}  // namespace

CriticalPath find_critical_path(const TraceEvents& trace, const StepView& steps) {
  std::vector<const Step*> sorted;
  for (const auto& step : steps.steps) sorted.push_back(&step);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Step* a, const Step* b) { return a->total() < b->total(); });
  return PathFinder(trace, *sorted[sorted.size() / 2]).find();
}

}  // namespace levin::report
