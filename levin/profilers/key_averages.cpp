#include "levin/profilers/key_averages.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "levin/profilers/stacks/stacks.h"
#include "levin/profilers/unit_spans.h"

namespace levin {
namespace {

using libkineto::ActivityType;
using torch::autograd::profiler::KinetoEvent;

constexpr std::string_view kStep = "ProfilerStep#";
/// Events that torch's tables leave out.
constexpr std::array<std::string_view, 7> kHidden{"[memory]",
                                                  "profiler::_record_function_enter",
                                                  "profiler::_record_function_enter_new",
                                                  "profiler::_record_function_exit",
                                                  "aten::is_leaf",
                                                  "aten::output_nr",
                                                  "aten::_version"};

/// An event of the host with its place in the calls of its thread.
struct Node {
  const KinetoEvent* event;
  std::string name;
  uint64_t thread;
  int64_t start, end;
  int parent = -1;
  int children = 0;
  /// The deepest unit around it, -1 for none.
  int unit = -1;
  int64_t self_cpu = 0;
  int64_t self_device = 0, device_total = 0;
  int64_t self_cpu_memory = 0, cpu_memory = 0, self_device_memory = 0, device_memory = 0;
  /// Another call of the same name inside is counted with this one.
  bool folded = false;
};

struct Calls {
  std::vector<Node> nodes;
  std::vector<std::string> units;
};

std::string shapes_of(const KinetoEvent& event) {
  if (!event.hasShapes()) return "[]";
  std::string text = "[";
  for (const auto& shape : event.shapes())
    text += fmt::format("{}[{}]", text.size() > 1 ? ", " : "", fmt::join(shape, ", "));
  return text + "]";
}

bool on_host(const KinetoEvent& event) {
  return event.deviceType() == c10::DeviceType::CPU;
}

/// Events of the host in the order of calls: by thread, then by time, the longer one first.
Calls host_calls(const std::vector<KinetoEvent>& events) {
  Calls calls;
  std::unordered_map<uint64_t, uint64_t> thread_of;  // by correlation, for calls of the runtime
  for (const auto& event : events)
    if (on_host(event) && event.linkedCorrelationId() == 0)
      thread_of.emplace(event.correlationId(), event.startThreadId());
  for (const auto& event : events) {
    const auto name = event.name();
    if (!on_host(event) || event.isAsync() || name == "[memory]" || event.isHiddenEvent()) continue;
    auto thread = event.startThreadId();
    if (const auto linked = event.linkedCorrelationId())
      if (const auto found = thread_of.find(linked); found != thread_of.end()) thread = found->second;
    calls.nodes.push_back({.event = &event,
                           .name = name.starts_with(kStep) ? "ProfilerStep*" : name,
                           .thread = thread,
                           .start = static_cast<int64_t>(event.startNs()),
                           .end = static_cast<int64_t>(event.endNs())});
  }
  std::stable_sort(calls.nodes.begin(), calls.nodes.end(), [](const Node& a, const Node& b) {
    return std::tuple(a.thread, a.start, -a.end) < std::tuple(b.thread, b.start, -b.end);
  });
  return calls;
}

void connect(Calls& calls, const detail::AllUnitCalls& of_backward) {
  std::map<std::string, int> indices;
  const auto index_of = [&](const std::string& path) {
    const auto [found, is_new] = indices.try_emplace(path, static_cast<int>(calls.units.size()));
    if (is_new) calls.units.push_back(path);
    return found->second;
  };
  std::vector<int> open;
  for (size_t i = 0; i < calls.nodes.size(); ++i) {
    auto& node = calls.nodes[i];
    while (!open.empty()) {
      const auto& last = calls.nodes[static_cast<size_t>(open.back())];
      if (last.thread == node.thread && last.end > node.start && node.end <= last.end) break;
      open.pop_back();
    }
    if (!open.empty()) {
      node.parent = open.back();
      auto& parent = calls.nodes[static_cast<size_t>(node.parent)];
      ++parent.children;
      node.unit = parent.unit;
    }
    detail::UnitSpanName unit;
    if (detail::UnitSpanName::parse(node.name, unit)) node.unit = index_of(unit.path);
    if (const auto thread = node.event->fwdThreadId(); thread > 0 && node.event->sequenceNr() >= 0)
      if (const auto* made = detail::find_unit(of_backward, thread, node.event->sequenceNr()))
        node.unit = index_of(made->path);
    open.push_back(static_cast<int>(i));
  }
}

/// Bytes belong to the deepest call of their thread at their time.
void add_memory(Calls& calls, const std::vector<KinetoEvent>& events) {
  std::unordered_map<uint64_t, std::vector<const KinetoEvent*>> by_thread;
  for (const auto& event : events)
    if (event.name() == "[memory]") by_thread[event.startThreadId()].push_back(&event);
  for (auto& [thread, list] : by_thread) {
    std::stable_sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->startNs() < b->startNs(); });
    auto next = std::lower_bound(calls.nodes.begin(), calls.nodes.end(), thread,
                                 [](const Node& node, uint64_t of) { return node.thread < of; });
    std::vector<Node*> open;
    for (const auto* event : list) {
      const auto at = static_cast<int64_t>(event->startNs());
      for (; next != calls.nodes.end() && next->thread == thread && next->start <= at; ++next) open.push_back(&*next);
      while (!open.empty() && open.back()->end < at) open.pop_back();
      if (open.empty()) continue;
      (on_host(*event) ? open.back()->self_cpu_memory : open.back()->self_device_memory) += event->nBytes();
    }
  }
}

void add_device(Calls& calls, const std::vector<KinetoEvent>& events) {
  std::unordered_map<uint64_t, Node*> by_correlation;
  for (auto& node : calls.nodes)
    if (node.event->linkedCorrelationId() == 0) by_correlation.emplace(node.event->correlationId(), &node);
  for (const auto& event : events) {
    if (on_host(event) || static_cast<ActivityType>(event.activityType()) == ActivityType::GPU_USER_ANNOTATION ||
        event.name() == "[memory]")
      continue;
    const auto found = by_correlation.find(event.linkedCorrelationId());
    if (found != by_correlation.end()) found->second->self_device += static_cast<int64_t>(event.durationNs());
  }
}

/// Totals, from the leaves up: a child stands behind its parent.
void add_up(Calls& calls) {
  for (auto& node : calls.nodes) {
    node.self_cpu += node.end - node.start;
    if (node.parent >= 0) calls.nodes[static_cast<size_t>(node.parent)].self_cpu -= node.end - node.start;
  }
  for (auto node = calls.nodes.rbegin(); node != calls.nodes.rend(); ++node) {
    node->device_total += node->self_device;
    node->cpu_memory += node->self_cpu_memory;
    node->device_memory += node->self_device_memory;
    if (node->parent < 0) continue;
    auto& parent = calls.nodes[static_cast<size_t>(node->parent)];
    parent.device_total += node->device_total;
    parent.cpu_memory += node->cpu_memory;
    parent.device_memory += node->device_memory;
  }
}

/// An operator that only calls one of the same name (an autograd wrapper) is one call.
void fold(Calls& calls) {
  for (auto node = calls.nodes.rbegin(); node != calls.nodes.rend(); ++node) {
    if (node->parent < 0) continue;
    auto& parent = calls.nodes[static_cast<size_t>(node->parent)];
    if (parent.children != 1 || parent.name != node->name) continue;
    node->folded = true;
    parent.self_cpu += node->self_cpu;
    parent.self_device += node->self_device;
    parent.self_cpu_memory += node->self_cpu_memory;
    parent.self_device_memory += node->self_device_memory;
  }
}

class Rows {
 public:
  explicit Rows(const KeyGrouping& grouping) : grouping_(grouping) {}

  KeyAverage& at(const std::string& name, const KinetoEvent& event, const std::string& unit,
                 const std::string& stack = {}) {
    const bool device = !on_host(event);
    const auto shapes = grouping_.by_input_shape && !device ? shapes_of(event) : std::string();
    const auto of_unit = grouping_.by_unit ? unit : std::string();
    const auto [found, is_new] = index_.try_emplace(std::tuple(name, shapes, of_unit, stack, device), rows.size());
    if (is_new)
      rows.push_back({.name = name, .unit = of_unit, .stack = stack, .input_shapes = shapes, .on_device = device});
    return rows[found->second];
  }

  std::vector<KeyAverage> rows;

 private:
  KeyGrouping grouping_;
  std::map<std::tuple<std::string, std::string, std::string, std::string, bool>, size_t> index_;
};

std::string joined(const std::vector<std::string>& frames, int64_t most) {
  const auto count = std::min(frames.size(), static_cast<size_t>(std::max<int64_t>(most, 0)));
  return fmt::format("{}", fmt::join(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(count), ";"));
}

bool is_hidden(std::string_view name) {
  return std::find(kHidden.begin(), kHidden.end(), name) != kHidden.end();
}

}  // namespace

std::vector<KeyAverage> key_averages(const torch::autograd::profiler::ProfilerResult& result,
                                     const KeyGrouping& grouping, const detail::AllUnitCalls& units,
                                     const detail::EventStacks* stacks) {
  const auto& events = result.events();
  auto calls = host_calls(events);
  connect(calls, units);
  add_memory(calls, events);
  add_device(calls, events);
  add_up(calls);
  fold(calls);

  Rows table(grouping);
  std::unordered_map<uint64_t, int> unit_of;  // by correlation, for kernels
  static const std::string kNoUnit;
  const auto name_of_unit = [&](int unit) -> const std::string& {
    return unit < 0 ? kNoUnit : calls.units[static_cast<size_t>(unit)];
  };
  for (const auto& node : calls.nodes) {
    unit_of.emplace(node.event->correlationId(), node.unit);
    if (node.folded || is_hidden(node.name)) continue;
    const auto stack = stacks != nullptr && grouping.by_stack > 0
                           ? joined(stacks->of(node.event->correlationId()), grouping.by_stack)
                           : std::string();
    auto& row = table.at(node.name, *node.event, name_of_unit(node.unit), stack);
    ++row.calls;
    row.self_cpu += node.self_cpu;
    row.cpu_total += node.end - node.start;
    row.self_device += node.self_device;
    row.device_total += node.device_total;
    row.self_cpu_memory += node.self_cpu_memory, row.cpu_memory += node.cpu_memory;
    row.self_device_memory += node.self_device_memory, row.device_memory += node.device_memory;
    row.flops += static_cast<int64_t>(node.event->flops());
  }
  for (const auto& event : events) {
    if (on_host(event) || is_hidden(event.name())) continue;
    const auto found = unit_of.find(event.linkedCorrelationId());
    auto name = event.name();
    if (name.starts_with(kStep)) name = "ProfilerStep*";
    auto& row = table.at(name, event, name_of_unit(found == unit_of.end() ? -1 : found->second));
    ++row.calls;
    row.self_device += static_cast<int64_t>(event.durationNs());
    row.device_total += static_cast<int64_t>(event.durationNs());
    row.is_annotation |= static_cast<ActivityType>(event.activityType()) == ActivityType::GPU_USER_ANNOTATION;
  }
  return std::move(table.rows);
}

}  // namespace levin
