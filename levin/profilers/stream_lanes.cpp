#include "levin/profilers/stream_lanes.h"

#include <fmt/format.h>

#include "levin/profilers/trace_fields.h"

namespace levin::detail {
namespace {

constexpr std::string_view kAnnotation = "\"cat\": \"gpu_user_annotation\"";
// Streams have small numbers.
constexpr int64_t kThreadsApart = 100000;

std::string tid_of(std::string_view thread) {
  return fmt::format("\"tid\": {}", thread);
}

std::string lane_thread(const std::string& thread, size_t lane) {
  return std::to_string(static_cast<int64_t>(trace_number(thread)) + static_cast<int64_t>(lane) * kThreadsApart);
}

void replace_last(std::string& text, const std::string& from, const std::string& to) {
  if (const auto at = text.rfind(from); at != std::string::npos) text.replace(at, from.size(), to);
}

}  // namespace

bool StreamLanes::Lane::fits(Ns start, Ns end, bool is_work) const {
  // A span that begins before and ends inside, or begins inside and ends after.
  for (auto at = by_end.upper_bound(start); at != by_end.end() && at->first < end; ++at)
    if (at->second < start) return false;
  for (auto at = by_start.upper_bound(start); at != by_start.end() && at->first < end; ++at)
    if (at->second > end) return false;
  if (!is_work) return true;
  const auto next = work.lower_bound(start);
  if (next != work.end() && next->first < end) return false;
  return next == work.begin() || std::prev(next)->second <= start;
}

void StreamLanes::Lane::add(Ns start, Ns end, bool is_work) {
  by_start.emplace(start, end);
  by_end.emplace(end, start);
  if (is_work) work.emplace(start, end);
}

bool StreamLanes::is_device_span(std::string_view names) {
  for (const auto kind : {kKernelLine, std::string_view("\"cat\": \"gpu_mem"), kAnnotation})
    if (names.find(kind) != std::string_view::npos) return true;
  return false;
}

void StreamLanes::place(std::string& names, std::string_view times) {
  const std::string process(trace_field(names, "pid")), thread(trace_field(names, "tid"));
  const auto time = trace_field(times, "ts");
  const Ns start = trace_time(time), end = start + trace_time(trace_field(times, "dur"));
  const bool is_work = names.find(kAnnotation) == std::string::npos;
  auto& lanes = streams_[{process, thread}];
  size_t lane = 0;
  while (lane < lanes.size() && !lanes[lane].fits(start, end, is_work)) ++lane;
  if (lane == lanes.size()) lanes.emplace_back();
  lanes[lane].add(start, end, is_work);
  moved_from_.clear();
  if (lane == 0) return;
  moved_from_ = tid_of(thread), moved_to_ = tid_of(lane_thread(thread, lane)), moved_time_ = time;
  replace_last(names, moved_from_, moved_to_);
}

void StreamLanes::place_arrow(std::string& line) const {
  if (!moved_from_.empty() && trace_field(line, "ts") == moved_time_) replace_last(line, moved_from_, moved_to_);
}

std::string StreamLanes::text() const {
  std::string all;
  for (const auto& [place, lanes] : streams_) {
    const auto& [process, thread] = place;
    for (size_t lane = 1; lane < lanes.size(); ++lane) {
      const auto where =
          fmt::format("\"ph\": \"M\", \"ts\": 0, \"pid\": {}, \"tid\": {}", process, lane_thread(thread, lane));
      all += fmt::format(
          "  {{\n    \"name\": \"thread_name\", {},\n    \"args\": {{\n      \"name\": \"stream {} at the same time "
          "{}\"\n    }}\n  }},\n",
          where, thread, lane + 1);
      all += fmt::format(
          "  {{\n    \"name\": \"thread_sort_index\", {},\n    \"args\": {{\n      \"sort_index\": {}\n    }}\n  }},\n",
          where, static_cast<int64_t>(trace_number(thread)));
    }
  }
  return all;
}

}  // namespace levin::detail
