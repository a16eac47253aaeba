#include "levin/report/views/launches.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "levin/report/trace/span_index.h"

namespace levin::report {
namespace {

constexpr Ns kSlowCall = 50'000, kLate = 100'000;

/// A call and the first work that it launched.
struct Launch {
  const RuntimeCall* call;
  const DeviceEvent* work;
};

std::vector<Launch> launches_of(const TraceEvents& trace) {
  std::vector<uint32_t> first(trace.calls.size(), kNone);
  for (uint32_t i = 0; i < trace.device.size(); ++i) {
    const auto launch = trace.device[i].launch;
    if (launch != kNone && first[launch] == kNone) first[launch] = i;  // device work is in the order of its start
  }
  std::vector<Launch> out;
  for (size_t i = 0; i < first.size(); ++i) {
    if (first[i] != kNone) out.push_back({&trace.calls[i], &trace.device[first[i]]});
  }
  return out;
}

// The highest point of each of `most` pieces.
std::vector<LaunchStream::Point> thinned(const std::vector<LaunchStream::Point>& points, size_t most) {
  if (points.size() <= most) return points;
  std::vector<LaunchStream::Point> out;
  for (size_t i = 0; i < most; ++i) {
    const auto* const begin = points.data() + i * points.size() / most;
    const auto* const end = points.data() + (i + 1) * points.size() / most;
    out.push_back(*std::max_element(begin, end, [](const auto& a, const auto& b) { return a.length < b.length; }));
  }
  return out;
}

struct Change {
  Ns time = 0;
  int by = 0;
};

void follow_queue(std::vector<Change> changes, LaunchStream& stream) {
  // Work that starts at the time of its call has left before others come.
  std::ranges::sort(changes,
                    [](const Change& a, const Change& b) { return std::pair(a.time, a.by) < std::pair(b.time, b.by); });
  std::vector<LaunchStream::Point> points;
  double weighted = 0;
  int length = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    length += changes[i].by;
    stream.longest = std::max(stream.longest, length);
    points.push_back({changes[i].time, std::max(length, 0)});
    const Ns lasts = i + 1 < changes.size() ? changes[i + 1].time - changes[i].time : 0;
    weighted += static_cast<double>(lasts) * std::max(length, 0);
    if (length >= kFullQueue) stream.full += lasts;
  }
  const Ns whole = changes.back().time - changes.front().time;
  stream.mean = whole > 0 ? weighted / static_cast<double>(whole) : 0;
  stream.curve = thinned(points, 1000);
}

}  // namespace

LaunchView view_launches(const TraceEvents& trace) {
  LaunchView view;
  std::map<std::pair<int, uint32_t>, std::vector<Change>> queues;
  std::unordered_map<uint32_t, LaunchRow> rows;
  std::vector<Ns> delays;
  for (const auto& [call, work] : launches_of(trace)) {
    const Ns delay = std::max<Ns>(work->start - call->end(), 0);
    const bool is_shorter = work->duration < call->duration;
    ++view.launches;
    view.call += call->duration;
    view.delay += delay;
    view.shorter += is_shorter;
    view.slow_calls += call->duration > kSlowCall;
    view.late += delay > kLate;
    delays.push_back(delay);
    auto& row = rows[work->name];
    row.name = work->name;
    ++row.launches;
    row.call += call->duration;
    row.delay += delay;
    row.work += work->duration;
    row.shorter += is_shorter;
    auto& queue = queues[{work->device, work->stream}];
    queue.push_back({call->start, 1});
    queue.push_back({std::max(work->start, call->start), -1});
  }
  if (delays.empty()) return view;
  std::ranges::sort(delays);
  view.median_delay = (delays[delays.size() / 2] + delays[(delays.size() - 1) / 2]) / 2;
  view.longest_delay = delays.back();
  for (auto& [place, changes] : queues) {
    auto& stream = view.streams.emplace_back(LaunchStream{.device = place.first, .stream = place.second});
    stream.launches = changes.size() / 2;
    follow_queue(std::move(changes), stream);
  }
  for (auto& [name, row] : rows) view.rows.push_back(row);
  std::ranges::sort(view.rows, [](const LaunchRow& a, const LaunchRow& b) {
    return a.launches != b.launches ? a.launches > b.launches : a.name < b.name;
  });
  return view;
}

std::vector<AnnotationRow> view_annotations(const TraceEvents& trace) {
  const SpanIndex index(
      trace, [&](uint32_t i) { return trace.host[i].kind == HostKind::kAnnotation && trace.host[i].is_annotation; });
  std::unordered_map<uint32_t, AnnotationRow> rows;
  for (const auto span : index.spans()) {
    const auto& host = trace.host[span];
    auto& row = rows[host.name];
    row.name = host.name;
    ++row.occurrences;
    bool is_inside_itself = false;
    for (auto at = index.parent(span); at != kNone && !is_inside_itself; at = index.parent(at))
      is_inside_itself = trace.host[at].name == host.name;
    if (!is_inside_itself) row.host += host.duration;
  }
  std::set<uint32_t> counted;
  for (const auto& event : trace.device) {
    if (event.launch == kNone) continue;
    const auto& call = trace.calls[event.launch];
    const auto innermost = index.at(call.thread, call.start + call.duration / 2);
    counted.clear();
    for (auto at = innermost; at != kNone; at = index.parent(at)) {
      auto& row = rows[trace.host[at].name];
      if (!counted.insert(trace.host[at].name).second) continue;
      ++row.launches;
      row.device_total += event.duration;
      if (at == innermost) row.device_self += event.duration;
    }
  }
  std::vector<AnnotationRow> out;
  for (auto& [name, row] : rows) out.push_back(row);
  std::ranges::sort(out, [](const AnnotationRow& a, const AnnotationRow& b) {
    return std::tuple(-a.device_total, -a.host, a.name) < std::tuple(-b.device_total, -b.host, b.name);
  });
  return out;
}

}  // namespace levin::report
