#include "levin/report/trace/lanes.h"

#include <algorithm>
#include <array>
#include <map>

namespace levin::report {
namespace {

constexpr uint16_t kMostRows = 40;

LaneKind kind_of_host(HostKind kind) {
  switch (kind) {
    case HostKind::kStep:
      return LaneKind::kStep;
    case HostKind::kDataLoader:
      return LaneKind::kDataLoader;
    case HostKind::kOptimizer:
      return LaneKind::kOptimizer;
    case HostKind::kCollective:
      return LaneKind::kCommunication;
    case HostKind::kAnnotation:
      return LaneKind::kAnnotation;
    case HostKind::kModule:
      return LaneKind::kModule;
    case HostKind::kOperator:
      break;
  }
  return LaneKind::kOperator;
}

LaneKind kind_of_device(const DeviceEvent& event) {
  if (event.kind == DeviceKind::kMemcpy) return LaneKind::kMemcpy;
  if (event.kind == DeviceKind::kMemset) return LaneKind::kMemset;
  return event.is_communication ? LaneKind::kCommunication : LaneKind::kKernel;
}

// Gives each span the first row that is free, below what it lies in. Spans are sorted by start.
void set_rows(Lane& lane) {
  std::vector<Ns> ends;  // of the open spans, by row
  for (auto& span : lane.spans) {
    while (!ends.empty() && ends.back() <= span.start) ends.pop_back();
    size_t row = ends.size();
    if (row >= kMostRows) row = kMostRows - 1;
    if (row >= ends.size()) ends.resize(row + 1);
    ends[row] = span.start + span.duration;
    span.row = static_cast<uint16_t>(row);
    lane.rows = std::max(lane.rows, static_cast<int>(row) + 1);
  }
}

using LaneMap = std::map<std::pair<std::string, uint32_t>, Lane>;

void add_host(const TraceEvents& trace, LaneMap& lanes) {
  for (const auto& span : trace.host)
    lanes[{"CPU", span.thread}].spans.push_back({span.start, span.duration, span.name, 1, 0, kind_of_host(span.kind)});
  std::vector<char> syncs(trace.names.size(), 2);
  for (const auto& call : trace.calls) {
    if (syncs[call.name] == 2) syncs[call.name] = is_sync(trace.name(call.name));
    const auto kind = syncs[call.name] ? LaneKind::kSync : LaneKind::kRuntime;
    lanes[{"CPU", call.thread}].spans.push_back({call.start, call.duration, call.name, 1, 0, kind});
  }
}

void add_device(const TraceEvents& trace, LaneMap& lanes) {
  for (const auto& event : trace.device)
    lanes[{trace.device_kind + " " + std::to_string(event.device), event.stream}].spans.push_back(
        {event.start, event.duration, event.name, 1, 0, kind_of_device(event)});
}

// Spans shorter than the bucket, of one row and one bucket, become one.
std::vector<LaneSpan> drawn_together(const std::vector<LaneSpan>& spans, Ns bucket, const Range& whole) {
  std::vector<LaneSpan> out;
  struct Open {
    size_t place = 0;
    Ns bucket = -1, longest = 0;
  };
  std::vector<Open> open(kMostRows);
  for (const auto& span : spans) {
    const bool is_inside = span.start >= whole.start && span.start + span.duration <= whole.end;
    if (span.duration >= bucket || is_inside) {
      out.push_back(span);
      continue;
    }
    auto& last = open[span.row];
    if (last.bucket == span.start / bucket) {
      auto& drawn = out[last.place];
      drawn.count += 1;
      drawn.duration = std::max(drawn.duration, span.start + span.duration - drawn.start);
      if (span.duration > last.longest) {
        last.longest = span.duration;
        drawn.name = span.name;
        drawn.kind = span.kind;
      }
      continue;
    }
    last = {.place = out.size(), .bucket = span.start / bucket, .longest = span.duration};
    out.push_back(span);
  }
  return out;
}

// A step of medium length, whole, when it is not too large.
Range whole_step(const StepView& steps, const std::vector<Lane>& lanes, size_t most) {
  std::vector<const Step*> sorted;
  for (const auto& step : steps.steps) sorted.push_back(&step);
  std::sort(sorted.begin(), sorted.end(), [](const Step* a, const Step* b) { return a->total() < b->total(); });
  const auto& step = *sorted[sorted.size() / 2];
  const Range range{std::min(step.start, step.host_start), step.end};
  size_t count = 0;
  for (const auto& lane : lanes) {
    for (const auto& span : lane.spans) count += span.start >= range.start && span.start < range.end;
  }
  return count <= most ? range : Range{};
}

std::string lane_name(const Track& track, bool is_host) {
  if (!track.name.empty()) return track.name;
  return (is_host ? "thread " : "stream ") + track.thread;
}

}  // namespace

bool is_sync(std::string_view call) {
  constexpr std::array kSyncs{"cudaStreamSynchronize",
                              "cudaDeviceSynchronize",
                              "cudaEventSynchronize",
                              "cudaMemcpy",
                              "cuStreamSynchronize",
                              "cuCtxSynchronize",
                              "cuEventSynchronize",
                              "hipStreamSynchronize",
                              "hipDeviceSynchronize",
                              "hipEventSynchronize",
                              "hipMemcpy",
                              "hipMemcpyWithStream",
                              "synchronizeStream"};
  return std::find(kSyncs.begin(), kSyncs.end(), call) != kSyncs.end();
}

Lanes view_lanes(const TraceEvents& trace, const StepView& steps, size_t most) {
  LaneMap found;
  add_host(trace, found);
  add_device(trace, found);
  Lanes view;
  size_t total = 0;
  for (auto& [key, lane] : found) {
    lane.group = key.first;
    lane.name = lane_name(trace.tracks[key.second], key.first == "CPU");
    std::stable_sort(lane.spans.begin(), lane.spans.end(), [](const LaneSpan& a, const LaneSpan& b) {
      return a.start != b.start ? a.start < b.start : a.duration > b.duration;
    });
    set_rows(lane);
    total += lane.spans.size();
    view.lanes.push_back(std::move(lane));
  }
  if (total <= most) return view;
  const auto whole = whole_step(steps, view.lanes, most / 2);
  view.bucket = std::max<Ns>((trace.end - trace.start) / 4000, 1);
  for (;; view.bucket *= 2) {
    std::vector<std::vector<LaneSpan>> drawn;
    size_t count = 0;
    for (const auto& lane : view.lanes) {
      drawn.push_back(drawn_together(lane.spans, view.bucket, whole));
      count += drawn.back().size();
    }
    if (count > most && view.bucket < trace.end - trace.start) continue;
    for (size_t i = 0; i < drawn.size(); ++i) view.lanes[i].spans = std::move(drawn[i]);
    return view;
  }
}

}  // namespace levin::report
