#include "levin/report/views/operator_view.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "levin/report/views/device_view.h"
#include "levin/report/views/flops.h"

namespace levin::report {
namespace {

uint64_t key_of(uint32_t a, uint32_t b) {
  return (uint64_t{a} << 32) | b;
}

void add_call(const TraceEvents& trace, const OpTree& tree, uint32_t i, FlopCounter& flops, OperatorRow& row) {
  const auto& span = trace.host[i];
  const auto& node = tree.nodes[i];
  ++row.calls;
  row.host_total += span.duration;
  row.host_self += node.host_self;
  row.device_total += node.device_total;
  row.device_self += node.device_self;
  row.tensor_core_self += node.tensor_core_self;
  row.tensor_core_total += node.tensor_core_total;
  row.could_use_tensor_cores |= node.could_use_tensor_cores;
  if (span.stack != 0) {
    row.stacks += row.stack != span.stack;
    if (row.stack == 0) row.stack = span.stack;
  }
  if (const auto count = flops.of(span)) row.flops = row.flops.value_or(0) + *count;
}

}  // namespace

std::vector<OperatorRow> view_operators(const TraceEvents& trace, const OpTree& tree, bool by_shape) {
  std::unordered_map<uint64_t, size_t> places;
  std::vector<OperatorRow> rows;
  FlopCounter flops(trace);
  Ns device = 0;
  for (uint32_t i = 0; i < trace.host.size(); ++i) {
    if (!tree.nodes[i].is_listed) continue;
    const auto& span = trace.host[i];
    const auto shapes = by_shape ? span.shapes : 0;
    const auto [at, is_new] = places.emplace(key_of(span.name, shapes), rows.size());
    if (is_new) rows.push_back({.name = span.name, .shapes = shapes});
    add_call(trace, tree, i, flops, rows[at->second]);
    device += tree.nodes[i].device_self;
  }
  std::stable_sort(rows.begin(), rows.end(), [&](const OperatorRow& a, const OperatorRow& b) {
    if (device > 0 && a.device_self != b.device_self) return a.device_self > b.device_self;
    return a.host_self > b.host_self;
  });
  return rows;
}

std::vector<KernelRow> view_kernels(const TraceEvents& trace, const OpTree& tree, bool by_properties) {
  using Key = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, int64_t, int64_t>;
  std::map<Key, size_t> places;
  std::vector<KernelRow> rows;
  const auto uses = tensor_core_names(trace, false);
  for (const auto& event : trace.device) {
    if (event.kind != DeviceKind::kKernel) continue;
    const auto& properties = trace.properties[event.properties];
    const auto owner = by_properties ? owner_of(trace, tree, event) : kNone;
    const auto name = owner == kNone ? kNone : trace.host[owner].name;
    const Key key = by_properties ? Key{event.name,
                                        name,
                                        properties.grid,
                                        properties.block,
                                        std::max<int64_t>(properties.registers, 0),
                                        std::max<int64_t>(properties.shared_memory, 0)}
                                  : Key{event.name, 0, 0, 0, 0, 0};
    const auto [at, is_new] = places.emplace(key, rows.size());
    if (is_new)
      rows.push_back({.name = event.name,
                      .operator_name = name,
                      .properties = properties,
                      .min = event.duration,
                      .uses_tensor_cores = uses[event.name] != 0,
                      .operator_could_use_tensor_cores = owner != kNone && tree.nodes[owner].could_use_tensor_cores,
                      .is_communication = event.is_communication});
    auto& row = rows[at->second];
    ++row.calls;
    row.total += event.duration;
    row.max = std::max(row.max, event.duration);
    row.min = std::min(row.min, event.duration);
    row.blocks_per_sm += std::max(properties.blocks_per_sm, 0.0) * static_cast<double>(event.duration);
    row.occupancy += std::max(properties.occupancy, 0.0) * static_cast<double>(event.duration);
  }
  for (auto& row : rows) {
    const auto total = static_cast<double>(std::max<Ns>(row.total, 1));
    row.blocks_per_sm /= total;
    row.occupancy /= total;
  }
  std::stable_sort(rows.begin(), rows.end(), [](const KernelRow& a, const KernelRow& b) { return a.total > b.total; });
  return rows;
}

std::vector<TransferRow> view_transfers(const TraceEvents& trace) {
  std::unordered_map<uint32_t, size_t> places;
  std::vector<TransferRow> rows;
  for (const auto& event : trace.device) {
    if (event.kind == DeviceKind::kKernel) continue;
    const auto [at, is_new] = places.emplace(event.name, rows.size());
    if (is_new) rows.push_back({.name = event.name, .kind = event.kind});
    auto& row = rows[at->second];
    ++row.calls;
    row.total += event.duration;
    row.bytes += std::max<int64_t>(event.bytes, 0);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const TransferRow& a, const TransferRow& b) { return a.total > b.total; });
  return rows;
}

}  // namespace levin::report
