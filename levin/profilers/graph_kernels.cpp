#include "levin/profilers/graph_kernels.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "levin/profilers/trace_fields.h"

namespace levin::detail {
namespace {

struct Replay {
  double start, end;
  int64_t graph;
};
struct Launch {
  double start;
  int64_t correlation;
};
struct Kernel {
  double start;
  int64_t number;
};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// The `correlation` of the event that begins here: up to the line that closes its arguments.
int64_t correlation_of(std::istream& trace) {
  for (std::string line; std::getline(trace, line) && !contains(line, "}");)
    if (const auto text = trace_field(line, "correlation"); !text.empty())
      return static_cast<int64_t>(trace_number(text));
  return -1;
}

struct Found {
  std::vector<Replay> replays;
  std::vector<Launch> launches;
  std::map<int64_t, std::vector<Kernel>> kernels;
};

Found search(std::istream& trace) {
  Found found;
  int64_t number = 0;
  for (std::string line, times; std::getline(trace, line);) {
    const bool is_kernel = contains(line, kKernelLine);
    const bool is_launch = contains(line, "\"name\": \"cudaGraphLaunch\"");
    const auto graph =
        contains(line, "\"cat\": \"user_annotation\"") ? replayed_graph(trace_field(line, "name")) : int64_t{-1};
    if (!is_kernel && !is_launch && graph < 0) continue;
    if (!std::getline(trace, times)) break;
    const double start = trace_number(trace_field(times, "ts"));
    if (graph >= 0) {
      found.replays.push_back({start, start + trace_number(trace_field(times, "dur")), graph});
      continue;
    }
    std::getline(trace, times);  // "args": {
    const auto correlation = correlation_of(trace);
    if (is_launch) found.launches.push_back({start, correlation});
    if (is_kernel) found.kernels[correlation].push_back({start, number++});
  }
  return found;
}

}  // namespace

// Kernels of a launch have its correlation, and run in the order of the graph. Kineto does not say which node they are:
// a launch with another number of kernels than the graph has is left alone.
GraphKernels::GraphKernels(std::istream& trace) {
  auto found = search(trace);
  for (const auto& launch : found.launches) {
    const auto replay = std::find_if(found.replays.begin(), found.replays.end(), [&](const Replay& each) {
      return launch.start >= each.start && launch.start <= each.end;
    });
    if (replay == found.replays.end()) continue;
    const auto graph = find_graph_units(replay->graph);
    auto& kernels = found.kernels[launch.correlation];
    if (!graph || kernels.size() != graph->kernels.size()) continue;
    std::stable_sort(kernels.begin(), kernels.end(),
                     [](const Kernel& a, const Kernel& b) { return a.start < b.start; });
    for (size_t i = 0; i < kernels.size(); ++i)
      if (graph->kernels[i].unit >= 0) owners_[kernels[i].number] = {graph, graph->kernels[i]};
  }
}

std::string GraphKernels::arguments(int64_t kernel) const {
  const auto found = owners_.find(kernel);
  if (found == owners_.end()) return {};
  const auto& [graph, owner] = found->second;
  return fmt::format("\"Unit\": \"{}\", \"Phase\": \"{}\",", graph->units[static_cast<size_t>(owner.unit)].path,
                     owner.is_backward ? "backward" : "forward");
}

}  // namespace levin::detail
