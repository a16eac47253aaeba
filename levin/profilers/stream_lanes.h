#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::detail {

/// Gives work of one stream that ran at the same time threads of its own in a trace.
///
/// Kernels of a replayed CUDA graph, and those that start before their predecessor ends, overlap. The trace format has
/// no such spans on a thread: Perfetto drops them. Times and the argument "stream" stay as they are.
class StreamLanes {
 public:
  static bool is_device_span(std::string_view names);
  /// The first two lines of a device's event as Kineto writes it: "tid" changes where the span overlaps others.
  void place(std::string& names, std::string_view times);
  /// The line of the arrow to the event that was placed last.
  void place_arrow(std::string& line) const;
  /// The names of the added threads, as events with a comma behind each.
  std::string text() const;

 private:
  using Ns = int64_t;
  struct Lane {
    bool fits(Ns start, Ns end, bool is_work) const;
    void add(Ns start, Ns end, bool is_work);

    std::multimap<Ns, Ns> by_start, by_end;
    std::map<Ns, Ns> work;  // by start; these never overlap
  };

  std::map<std::pair<std::string, std::string>, std::vector<Lane>> streams_;  // by process and thread
  std::string moved_from_, moved_to_, moved_time_;  // of the event placed last, where it moved
};

}  // namespace levin::detail
