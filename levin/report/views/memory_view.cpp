#include "levin/report/views/memory_view.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <unordered_map>

#include "levin/report/trace/span_index.h"

namespace levin::report {
namespace {

constexpr size_t kMostPoints = 2000, kMostBlocks = 500;

// Numbers of one operator span on one device.
struct Amounts {
  int64_t increase = 0, count = 0, size = 0;

  void add(const Amounts& other) {
    increase += other.increase;
    count += other.count;
    size += other.size;
  }
};

class MemoryReader {
 public:
  MemoryReader(const TraceEvents& trace, const OpTree& tree)
      : trace_(trace), tree_(tree), index_(trace, [&](uint32_t i) { return tree.nodes[i].is_in_tree; }) {}

  std::vector<MemoryDevice> read() {
    for (size_t i = 0; i < trace_.memory.size(); ++i) add(trace_.memory[i]);
    std::vector<MemoryDevice> out;
    const auto calls = calls_by_name();
    for (auto& [device, state] : devices_) out.push_back(finish(device, state, calls));
    return out;
  }

 private:
  struct State {
    MemoryDevice view;
    std::vector<MemoryPoint> points;
    std::vector<MemoryBlock> blocks;
    std::unordered_map<uint64_t, size_t> open;  // by address: a place in the blocks
    std::map<uint32_t, Amounts> self;           // by host span
  };

  // Only listed operators own memory; between a record and those may lie steps and optimizers.
  uint32_t owner_of(const MemoryEvent& event) const {
    const auto span = index_.at(event.thread, event.time);
    if (span == kNone) return kNone;
    const auto node = tree_.standing_for(span);
    return tree_.nodes[node].is_listed ? node : kNone;
  }

  std::string name_of(uint32_t owner) const {
    if (owner == kNone) return "<unknown>";
    const auto& name = trace_.name(trace_.host[owner].name);
    const auto parent = tree_.nodes[owner].parent;
    if (!name.starts_with("aten::empty") || parent == kNone) return name;
    return trace_.name(trace_.host[parent].name) + " (" + name + ")";
  }

  void add(const MemoryEvent& event) {
    auto& state = devices_[event.device];
    if (event.allocated >= 0)
      state.points.push_back({event.time, event.allocated, std::max<int64_t>(event.reserved, 0)});
    const auto owner = owner_of(event);
    if (owner != kNone) {
      auto& amounts = state.self[owner];
      amounts.increase += event.bytes;
      if (event.bytes > 0) {
        ++amounts.count;
        amounts.size += event.bytes;
      }
    }
    if (!event.has_address) return;
    if (event.bytes > 0) {
      state.open[event.address] = state.blocks.size();
      state.blocks.push_back({.operator_name = name_of(owner), .bytes = event.bytes, .allocated = event.time});
    } else if (const auto open = state.open.find(event.address); open != state.open.end()) {
      state.blocks[open->second].released = event.time;
      state.open.erase(open);
    } else {
      state.blocks.push_back({.operator_name = "<unknown>", .bytes = -event.bytes, .released = event.time});
    }
  }

  std::unordered_map<uint32_t, uint64_t> calls_by_name() const {
    std::unordered_map<uint32_t, uint64_t> calls;
    for (uint32_t i = 0; i < tree_.nodes.size(); ++i) calls[trace_.host[i].name] += tree_.nodes[i].is_listed;
    return calls;
  }

  std::vector<MemoryStatistics> statistics(const State& state,
                                           const std::unordered_map<uint32_t, uint64_t>& calls) const {
    std::map<uint32_t, Amounts> totals;  // of every span above a record
    for (const auto& [span, amounts] : state.self) {
      for (uint32_t at = span; at != kNone; at = tree_.nodes[at].parent) totals[at].add(amounts);
    }
    std::map<uint32_t, MemoryStatistics> rows;
    for (const auto& [span, amounts] : totals) {
      if (!tree_.nodes[span].is_listed) continue;
      auto& row = rows[trace_.host[span].name];
      row.increase += amounts.increase;
      row.count += amounts.count;
      row.size += amounts.size;
    }
    for (const auto& [span, amounts] : state.self) {
      auto& row = rows[trace_.host[span].name];
      row.self_increase += amounts.increase;
      row.self_count += amounts.count;
      row.self_size += amounts.size;
    }
    std::vector<MemoryStatistics> out;
    for (auto& [name, row] : rows) {
      row.name = name;
      row.calls = calls.at(name);
      out.push_back(row);
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const MemoryStatistics& a, const MemoryStatistics& b) { return a.self_size > b.self_size; });
    return out;
  }

  MemoryDevice finish(int device, State& state, const std::unordered_map<uint32_t, uint64_t>& calls) const {
    auto& view = state.view;
    view.device = device;
    for (const auto& point : state.points) {
      if (point.allocated > view.peak_allocated) {
        view.peak_allocated = point.allocated;
        view.peak_time = point.time;
      }
      view.peak_reserved = std::max(view.peak_reserved, point.reserved);
    }
    view.curve = thin(state.points, kMostPoints);
    view.statistics = statistics(state, calls);
    std::stable_sort(state.blocks.begin(), state.blocks.end(),
                     [](const MemoryBlock& a, const MemoryBlock& b) { return a.bytes > b.bytes; });
    if (state.blocks.size() > kMostBlocks) {
      view.left_out = state.blocks.size() - kMostBlocks;
      state.blocks.resize(kMostBlocks);
    }
    view.blocks = std::move(state.blocks);
    return std::move(view);
  }

  const TraceEvents& trace_;
  const OpTree& tree_;
  SpanIndex index_;
  std::map<int, State> devices_;
};

}  // namespace

std::string device_name(int device) {
  return device < 0 ? "CPU" : "GPU" + std::to_string(device);
}

std::vector<MemoryPoint> thin(const std::vector<MemoryPoint>& points, size_t most) {
  if (points.size() <= most) return points;
  std::vector<MemoryPoint> out;
  const size_t groups = most / 2;
  for (size_t group = 0; group < groups; ++group) {
    const auto begin = points.begin() + static_cast<ptrdiff_t>(group * points.size() / groups);
    const auto end = points.begin() + static_cast<ptrdiff_t>((group + 1) * points.size() / groups);
    auto [low, high] = std::minmax_element(
        begin, end, [](const MemoryPoint& a, const MemoryPoint& b) { return a.allocated < b.allocated; });
    if (high < low) std::swap(low, high);
    out.push_back(*low);
    if (high != low) out.push_back(*high);
  }
  return out;
}

std::vector<MemoryDevice> view_memory(const TraceEvents& trace, const OpTree& tree) {
  return MemoryReader(trace, tree).read();
}

}  // namespace levin::report
