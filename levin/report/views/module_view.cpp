#include "levin/report/views/module_view.h"

#include <map>
#include <unordered_map>
#include <utility>

#include "levin/report/trace/span_index.h"
#include "levin/report/views/device_view.h"
#include "levin/report/views/flops.h"

namespace levin::report {
namespace {

std::string module_name(const std::string& name) {
  for (const std::string_view prefix : {"nn.Module: ", "[pl][module]"}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

class ModuleReader {
 public:
  ModuleReader(const TraceEvents& trace, const OpTree& tree)
      : trace_(trace),
        tree_(tree),
        index_(trace, [&](uint32_t i) { return trace.host[i].kind == HostKind::kModule; }) {}

  std::vector<ModuleRow> read() {
    add_rows();
    add_units_of_kernels();
    if (rows_.empty()) return {};
    place_operators();
    add_operators();
    add_device_work();
    add_memory();
    for (size_t i = rows_.size(); i-- > 0;) pass_up(rows_[i]);
    return std::move(rows_);
  }

 private:
  static constexpr int kNoRow = -1;

  // Rows are found parents first: spans are sorted, and a parent begins before its children.
  void add_rows() {
    std::map<std::pair<int, uint32_t>, int> places;
    for (const auto span : index_.spans()) {
      const auto around = index_.parent(span);
      const int parent = around == kNone ? kNoRow : row_of_.at(around);
      const auto& host = trace_.host[span];
      const auto [at, is_new] = places.emplace(std::pair{parent, host.name}, static_cast<int>(rows_.size()));
      if (is_new) {
        const int depth = parent == kNoRow ? 0 : rows_[static_cast<size_t>(parent)].depth + 1;
        rows_.push_back({.name = module_name(trace_.name(host.name)), .parent = parent, .depth = depth});
      }
      row_of_[span] = at->second;
      auto& row = rows_[static_cast<size_t>(at->second)];
      ++row.occurrences;
      row.host_total += host.duration;
      row.host_self += host.duration;
      if (parent != kNoRow) rows_[static_cast<size_t>(parent)].host_self -= host.duration;
    }
  }

  // Kernels of a replayed graph name their unit; no span of it is in the trace. The units around it are in its path.
  void add_units_of_kernels() {
    std::map<std::string, int> rows;
    for (size_t i = 0; i < rows_.size(); ++i) rows.emplace(rows_[i].name, static_cast<int>(i));
    for (const auto& event : trace_.device) {
      if (event.unit == 0 || row_of_unit_.contains(event.unit)) continue;
      const auto& path = trace_.name(event.unit);
      int parent = kNoRow;
      for (size_t end = 0; end != std::string::npos;) {
        end = path.find('.', end + 1);
        const auto [at, is_new] = rows.emplace(path.substr(0, end), static_cast<int>(rows_.size()));
        if (is_new)
          rows_.push_back({.name = at->first,
                           .parent = parent,
                           .depth = parent == kNoRow ? 0 : rows_[static_cast<size_t>(parent)].depth + 1});
        parent = at->second;
      }
      row_of_unit_[event.unit] = parent;
    }
  }

  int row_at(uint32_t thread, Ns time) const {
    const auto span = index_.at(thread, time);
    return span == kNone ? kNoRow : row_of_.at(span);
  }

  // The row of every span, forward and backward. The last span with a sequence number is the operator that has it:
  // those before it only looked at the number.
  void place_operators() {
    forward_.assign(trace_.host.size(), kNoRow);
    backward_.assign(trace_.host.size(), kNoRow);
    std::unordered_map<uint32_t, std::pair<Ns, int>> by_sequence;
    for (uint32_t i = 0; i < trace_.host.size(); ++i) {
      const auto& span = trace_.host[i];
      if (!tree_.nodes[i].is_in_tree) continue;
      forward_[i] = row_at(span.thread, span.start);
      if (span.sequence == kNone || span.is_backward) continue;
      auto& known = by_sequence[span.sequence];
      if (span.start >= known.first) known = {span.start, forward_[i]};
    }
    for (uint32_t i = 0; i < trace_.host.size(); ++i) {
      const auto& span = trace_.host[i];
      const auto& node = tree_.nodes[i];
      if (!node.is_in_tree) continue;
      const auto found =
          span.is_backward && span.sequence != kNone ? by_sequence.find(span.sequence) : by_sequence.end();
      if (found != by_sequence.end()) {
        backward_[i] = found->second.second;
      } else if (node.parent != kNone) {
        backward_[i] = backward_[node.parent];
      }
    }
  }

  void add_operators() {
    FlopCounter flops(trace_);
    for (uint32_t i = 0; i < trace_.host.size(); ++i) {
      if (!tree_.nodes[i].is_listed) continue;
      const int place = forward_[i] != kNoRow ? forward_[i] : backward_[i];
      if (place == kNoRow) continue;
      auto& row = rows_[static_cast<size_t>(place)];
      ++row.operators;
      row.flops += flops.of(trace_.host[i]).value_or(0);
      if (const auto cost = tree_.nodes[i].device_self > 0 ? flops.cost(trace_.host[i]) : std::nullopt)
        row.bytes += cost->bytes;
    }
  }

  void add_device_work() {
    std::unordered_map<int, uint32_t> last_launch;
    for (const auto& event : trace_.device) {
      if (event.unit != 0) {
        const int place = row_of_unit_.at(event.unit);
        auto& row = rows_[static_cast<size_t>(place)];
        (event.is_backward ? row.backward_device : row.forward_device) += event.duration;
        row.device_self += event.duration;
        const auto [at, is_new] = last_launch.emplace(place, event.correlation);
        row.occurrences += is_new || std::exchange(at->second, event.correlation) != event.correlation;
        continue;
      }
      if (event.launch == kNone) continue;
      const auto owner = owner_of(trace_, tree_, event);
      const auto& call = trace_.calls[event.launch];
      const int forward = owner != kNone ? forward_[owner] : row_at(call.thread, call.start);
      const int backward = owner != kNone ? backward_[owner] : kNoRow;
      const int place = backward != kNoRow ? backward : forward;
      if (place == kNoRow) continue;
      auto& row = rows_[static_cast<size_t>(place)];
      (backward != kNoRow ? row.backward_device : row.forward_device) += event.duration;
      row.device_self += event.duration;
    }
  }

  void add_memory() {
    for (const auto& event : trace_.memory) {
      const int place = row_at(event.thread, event.time);
      if (place == kNoRow) continue;
      auto& row = rows_[static_cast<size_t>(place)];
      row.increase += event.bytes;
      if (event.bytes > 0) row.allocated += event.bytes;
    }
  }

  void pass_up(const ModuleRow& row) {
    if (row.parent == kNoRow) return;
    auto& parent = rows_[static_cast<size_t>(row.parent)];
    parent.operators += row.operators;
    parent.forward_device += row.forward_device;
    parent.backward_device += row.backward_device;
    parent.flops += row.flops;
    parent.bytes += row.bytes;
    parent.allocated += row.allocated;
    parent.increase += row.increase;
  }

  const TraceEvents& trace_;
  const OpTree& tree_;
  SpanIndex index_;
  std::vector<ModuleRow> rows_;
  std::unordered_map<uint32_t, int> row_of_;
  std::unordered_map<uint32_t, int> row_of_unit_;
  std::vector<int> forward_, backward_;
};

}  // namespace

std::vector<ModuleRow> view_modules(const TraceEvents& trace, const OpTree& tree) {
  return ModuleReader(trace, tree).read();
}

}  // namespace levin::report
