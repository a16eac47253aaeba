#include "levin/report/views/device_view.h"

#include <algorithm>
#include <map>
#include <utility>

#include "levin/report/views/flops.h"
#include "levin/report/views/tensor_cores.h"

namespace levin::report {
namespace {

// The time-weighted mean of min(blocks per SM of the running kernels, 1).
std::optional<double> sm_efficiency(const TraceEvents& trace, int device, Ns start, Ns end) {
  std::vector<std::pair<Ns, double>> changes;
  for (const auto& event : trace.device) {
    if (event.kind != DeviceKind::kKernel || event.device != device) continue;
    const double blocks = trace.properties[event.properties].blocks_per_sm;
    const Ns from = std::max(event.start, start), to = std::min(event.end(), end);
    if (blocks <= 0 || from >= to) continue;
    changes.emplace_back(from, blocks);
    changes.emplace_back(to, -blocks);
  }
  if (changes.empty()) return std::nullopt;
  std::sort(changes.begin(), changes.end());
  double sum = 0, running = 0;
  size_t kernels = 0;
  for (size_t i = 0; i + 1 < changes.size(); ++i) {
    running += changes[i].second;
    kernels += changes[i].second > 0 ? 1 : -1;
    if (kernels == 0) running = 0;  // no rounding is carried over
    sum += std::clamp(running, 0.0, 1.0) * static_cast<double>(changes[i + 1].first - changes[i].first);
  }
  return sum / static_cast<double>(end - start);
}

std::optional<double> occupancy(const TraceEvents& trace, int device, Ns start, Ns end) {
  double sum = 0, time = 0;
  for (const auto& event : trace.device) {
    if (event.kind != DeviceKind::kKernel || event.device != device) continue;
    const double occupied = trace.properties[event.properties].occupancy;
    const auto inside = static_cast<double>(std::min(event.end(), end) - std::max(event.start, start));
    if (occupied < 0 || inside <= 0) continue;
    sum += occupied * inside;
    time += inside;
  }
  if (time <= 0) return std::nullopt;
  return sum / time / 100;
}

void add_curve(const TraceEvents& trace, const Ranges& busy, GpuSummary& gpu) {
  const Ns whole = trace.record_end - trace.record_start;
  if (whole <= 0) return;
  gpu.curve_start = trace.record_start;
  gpu.bucket = 1000;
  while (whole > 100 * gpu.bucket) gpu.bucket *= 10;
  const Ns count = std::max<Ns>(1, whole / gpu.bucket);
  for (Ns i = 0; i < count; ++i) {
    const Ns from = trace.record_start + i * gpu.bucket;
    const Ns to = i + 1 == count ? trace.record_end : from + gpu.bucket;
    gpu.curve.push_back(static_cast<double>(length_in(busy, from, to)) / static_cast<double>(to - from));
  }
}

std::optional<double> tensor_core_share(const TraceEvents& trace, const OpTree& tree, int device,
                                        const std::vector<char>& uses) {
  Ns used = 0, all = 0;
  for (const auto& event : trace.device) {
    if (event.kind != DeviceKind::kKernel || event.device != device) continue;
    const auto owner = owner_of(trace, tree, event);
    const bool is_listed = owner != kNone && tree.nodes[owner].is_listed;
    if (!is_listed && !is_replayed(trace, event)) continue;
    all += event.duration;
    if (uses[event.name]) used += event.duration;
  }
  if (all == 0) return std::nullopt;
  return static_cast<double>(used) / static_cast<double>(all);
}

/// What the trace says of a device. One that is not in its list is as the others, where these are all the same.
DeviceInfo device_info(const TraceEvents& trace, int device) {
  const auto& all = trace.devices;
  const auto same = [&](const DeviceInfo& info) {
    return info.name == all[0].name && info.major == all[0].major && info.minor == all[0].minor &&
           info.memory_bytes == all[0].memory_bytes;
  };
  for (const auto& info : all) {
    if (info.id == device) return info;
  }
  if (all.empty() || !std::all_of(all.begin(), all.end(), same)) return {.id = device};
  auto info = all[0];
  info.id = device;
  return info;
}

GpuSummary summarize(const TraceEvents& trace, const OpTree& tree, const StepView& steps, int device,
                     const std::vector<char>& uses) {
  GpuSummary gpu{.device = device, .info = device_info(trace, device)};
  Ranges busy;
  for (const auto& event : trace.device) {
    if (event.kind == DeviceKind::kKernel && event.device == device) busy.push_back({event.start, event.end()});
  }
  busy = merge(std::move(busy));
  const Ns start = steps.start(), end = steps.end();
  if (end > start) {
    gpu.utilization = static_cast<double>(length_in(busy, start, end)) / static_cast<double>(end - start);
    gpu.sm_efficiency = sm_efficiency(trace, device, start, end);
    gpu.occupancy = occupancy(trace, device, start, end);
  }
  gpu.tensor_core_time = tensor_core_share(trace, tree, device, uses);
  for (const auto& memory : trace.memory) {
    if (memory.device == device) gpu.peak_allocated = std::max(gpu.peak_allocated, memory.allocated);
  }
  add_curve(trace, busy, gpu);
  return gpu;
}

}  // namespace

bool is_replayed(const TraceEvents& trace, const DeviceEvent& event) {
  return event.launch != kNone && trace.name(trace.calls[event.launch].name).find("GraphLaunch") != std::string::npos;
}

uint32_t owner_of(const TraceEvents& trace, const OpTree& tree, const DeviceEvent& event) {
  if (event.launch == kNone) return kNone;
  const auto owner = trace.calls[event.launch].owner;
  if (owner == kNone || !tree.nodes[owner].is_in_tree) return kNone;
  return tree.standing_for(owner);
}

std::vector<GpuSummary> summarize_gpus(const TraceEvents& trace, const OpTree& tree, const StepView& steps) {
  std::map<int, bool> devices;
  for (const auto& event : trace.device) {
    if (event.kind == DeviceKind::kKernel) devices[event.device] = true;
  }
  const auto uses = tensor_core_names(trace, false);
  std::vector<GpuSummary> gpus;
  for (const auto& [device, found] : devices) gpus.push_back(summarize(trace, tree, steps, device, uses));
  return gpus;
}

TensorCoreTimes tensor_core_times(const TraceEvents& trace, const OpTree& tree) {
  const auto uses = tensor_core_names(trace, false), uses_compat = tensor_core_names(trace, true);
  std::vector<std::pair<bool, bool>> kinds(trace.names.size());
  for (const auto& event : trace.device) {
    auto& kind = kinds[event.name];
    if (event.kind == DeviceKind::kKernel && kind == std::pair(false, false))
      kind = {uses_tf32(trace.name(event.name)), changes_memory_format(trace.name(event.name))};
  }
  TensorCoreTimes times;
  FlopCounter costs(trace);
  for (const auto& event : trace.device) {
    if (event.kind != DeviceKind::kKernel) continue;
    const Ns used = uses[event.name] ? event.duration : 0, used_compat = uses_compat[event.name] ? event.duration : 0;
    times.all += event.duration;
    times.all_used += used;
    times.all_used_compat += used_compat;
    const auto owner = owner_of(trace, tree, event);
    const bool replayed = is_replayed(trace, event);
    if (replayed || (owner != kNone && tree.nodes[owner].is_listed)) {
      times.of_operators += event.duration;
      times.of_operators_used += used;
      times.of_operators_used_compat += used_compat;
    }
    if (owner != kNone && tree.nodes[owner].is_lowest_eligible) {
      times.of_eligible += event.duration;
      times.of_eligible_used += used;
      const auto [tf32, memory_format] = kinds[event.name];
      if (tf32) times.tf32 += event.duration;
      if (memory_format) times.memory_format += event.duration;
      const auto cost = costs.cost(trace.host[owner]);
      const int element = cost ? cost->element_bytes : 0;
      if (element >= 4) times.of_float += event.duration;
      if (!uses[event.name] && !memory_format && (element == 0 || element >= 4)) times.of_slow += event.duration;
    }
  }
  return times;
}

}  // namespace levin::report
