#include "levin/report/views/distributed_view.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "levin/core/error.h"
#include "levin/report/json_text.h"
#include "levin/report/report.h"
#include "levin/report/trace/element_types.h"
#include "levin/report/views/flops.h"

namespace levin::report {
namespace {

// Negative when the trace does not say.
int64_t bytes_of(const TraceEvents& trace, const HostSpan& span) {
  if (span.shapes == 0) return -1;
  const auto shapes = shapes_of(trace.name(span.shapes));
  std::vector<std::string> types;
  try {
    if (const auto& text = trace.name(span.types); text.starts_with('[')) {
      for (JsonMembers items(text); items.next();) types.push_back(text_of(items.value()));
    }
  } catch (const Error&) {
  }
  if (types.empty()) return -1;
  double bytes = 0;
  for (size_t i = 0; i < shapes.size() && i < types.size(); ++i) {
    double count = bytes_of_type(types[i]);
    for (const auto size : shapes[i]) count *= static_cast<double>(size);
    bytes += count;
  }
  return bytes < 9e18 ? static_cast<int64_t>(bytes) : -1;
}

std::string step_at(const StepView& steps, Ns start) {
  for (const auto& step : steps.steps) {
    if (start >= step.host_start && start < step.end) return step.name;
  }
  return {};
}

// The kernels of each collective, by its place in the host spans.
std::map<uint32_t, std::vector<uint32_t>> kernels_of_collectives(const TraceEvents& trace) {
  std::map<uint32_t, std::vector<uint32_t>> kernels;
  for (uint32_t i = 0; i < trace.device.size(); ++i) {
    if (trace.device[i].collective != kNone) kernels[trace.device[i].collective].push_back(i);
  }
  return kernels;
}

int64_t bytes_of(const TraceEvents& trace, const DeviceEvent& kernel) {
  return kernel.message == kNone ? -1 : trace.messages[kernel.message].bytes;
}

// A kernel without a collective of the host: one of a replayed graph, or of a trace of the device alone.
Collective kernel_alone(const TraceEvents& trace, const StepView& steps, const DeviceEvent& kernel) {
  const auto said = kernel.message == kNone ? 0 : trace.messages[kernel.message].name;
  return {.name = said != 0 ? "nccl:" + trace.name(said) : trace.name(kernel.name),
          .step = step_at(steps, kernel.start),
          .start = kernel.start,
          .bytes = bytes_of(trace, kernel),
          .ranges = {{kernel.start, kernel.end()}},
          .with_host = {{kernel.start, kernel.end()}}};
}

// A collective of the host: as long as its kernels, or as its span where there are none.
Collective collective_of(const TraceEvents& trace, const StepView& steps, const HostSpan& span,
                         const std::vector<uint32_t>& kernels) {
  Collective out{.name = trace.name(span.name),
                 .step = step_at(steps, span.start),
                 .start = span.start,
                 .bytes = bytes_of(trace, span)};
  int64_t said = -1;
  for (const auto i : kernels) {
    const auto& kernel = trace.device[i];
    out.ranges.push_back({kernel.start, kernel.end()});
    if (const auto bytes = bytes_of(trace, kernel); bytes >= 0) said = std::max<int64_t>(said, 0) + bytes;
  }
  if (out.bytes < 0) out.bytes = said;
  if (kernels.empty()) out.ranges.push_back({span.start, span.end()});
  out.with_host = out.ranges;
  if (!kernels.empty()) out.with_host.push_back({span.start, span.end()});
  std::ranges::sort(out.with_host, [](const Range& a, const Range& b) { return a.start < b.start; });
  return out;
}

struct Timed {
  const Collective* collective;
  /// The part of each range in which data moves: its end, as long as the shortest of all ranks.
  Ranges transfer, tb_transfer;
};
using RankTimes = std::vector<std::vector<Timed>>;

bool same_collectives(const std::vector<const TraceReport*>& ranks) {
  const auto& first = ranks[0]->collectives;
  return std::all_of(ranks.begin(), ranks.end(), [&](const TraceReport* rank) {
    return rank->collectives.size() == first.size() && std::equal(first.begin(), first.end(), rank->collectives.begin(),
                                                                  [](const Collective& a, const Collective& b) {
                                                                    return a.name == b.name &&
                                                                           a.ranges.size() == b.ranges.size() &&
                                                                           a.with_host.size() == b.with_host.size();
                                                                  });
  });
}

/// The plugin's transfers of the i-th collective: the end of each rank's range, as long as the shortest.
void add_host_transfers(const std::vector<const TraceReport*>& ranks, size_t i, RankTimes& times) {
  for (size_t j = 0; j < ranks[0]->collectives[i].with_host.size(); ++j) {
    const auto range = [&](size_t r) { return ranks[r]->collectives[i].with_host[j]; };
    Ns shortest = range(0).end - range(0).start;
    for (size_t r = 1; r < ranks.size(); ++r) shortest = std::min(shortest, range(r).end - range(r).start);
    for (size_t r = 0; r < ranks.size(); ++r)
      times[r].back().tb_transfer.push_back({range(r).end - shortest, range(r).end});
  }
}

RankTimes time_transfers(const std::vector<const TraceReport*>& ranks, std::map<int64_t, StragglerRow>& stragglers) {
  RankTimes times(ranks.size());
  const size_t count = ranks[0]->collectives.size();
  for (size_t i = 0; i < count; ++i) {
    for (size_t r = 0; r < ranks.size(); ++r) times[r].push_back({&ranks[r]->collectives[i], {}, {}});
    add_host_transfers(ranks, i, times);
    for (size_t j = 0; j < ranks[0]->collectives[i].ranges.size(); ++j) {
      size_t last = 0;
      Ns shortest = 0, longest = 0;
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto& range = ranks[r]->collectives[i].ranges[j];
        const Ns duration = range.end - range.start;
        if (r == 0 || duration < shortest) {
          shortest = duration;
          last = r;
        }
        longest = std::max(longest, duration);
      }
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto end = ranks[r]->collectives[i].ranges[j].end;
        times[r].back().transfer.push_back({end - shortest, end});
      }
      auto& row = stragglers[ranks[last]->rank];
      row.rank = ranks[last]->rank;
      row.late += longest - shortest;
      ++row.times_last;
    }
  }
  return times;
}

WaitingRow waiting_of(int64_t rank, const std::string& step, const std::vector<Timed>& times) {
  Ranges all, transfer, tb_all, tb_transfer;
  for (const auto& timed : times) {
    if (step != "all" && timed.collective->step != step) continue;
    all.insert(all.end(), timed.collective->ranges.begin(), timed.collective->ranges.end());
    transfer.insert(transfer.end(), timed.transfer.begin(), timed.transfer.end());
    tb_all.insert(tb_all.end(), timed.collective->with_host.begin(), timed.collective->with_host.end());
    tb_transfer.insert(tb_transfer.end(), timed.tb_transfer.begin(), timed.tb_transfer.end());
  }
  const Ns moved = length(merge(std::move(transfer))), tb_moved = length(merge(std::move(tb_transfer)));
  return {.rank = rank,
          .step = step,
          .transfer = moved,
          .synchronizing = length(merge(std::move(all))) - moved,
          .tb_transfer = tb_moved,
          .tb_synchronizing = length(merge(std::move(tb_all))) - tb_moved};
}

void add_operations(int64_t rank, const std::vector<Timed>& times, std::vector<OperationRow>& rows) {
  struct OfName {
    Ranges all, transfer, tb_all, tb_transfer;
  };
  const auto append = [](Ranges& to, const Ranges& from) { to.insert(to.end(), from.begin(), from.end()); };
  std::map<std::string, OfName> ranges;
  std::map<std::string, OperationRow> by_name;
  for (const auto& timed : times) {
    auto& row = by_name[timed.collective->name];
    row.rank = rank;
    row.name = timed.collective->name;
    ++row.calls;
    // One that does not say makes the sum unknown.
    const auto bytes = timed.collective->bytes;
    row.bytes = row.bytes < 0 || bytes < 0 ? -1 : row.bytes + bytes;
    auto& of = ranges[row.name];
    append(of.all, timed.collective->ranges);
    append(of.transfer, timed.transfer);
    append(of.tb_all, timed.collective->with_host);
    append(of.tb_transfer, timed.tb_transfer);
  }
  for (auto& [name, row] : by_name) {
    auto& of = ranges[name];
    row.latency = length(merge(std::move(of.all)));
    row.transfer = length(merge(std::move(of.transfer)));
    row.tb_latency = length(merge(std::move(of.tb_all)));
    row.tb_transfer = length(merge(std::move(of.tb_transfer)));
    rows.push_back(row);
  }
}

void add_overlap(const TraceReport& rank, std::vector<OverlapRow>& rows) {
  OverlapRow all{.rank = rank.rank, .step = "all"};
  const auto count = static_cast<Ns>(rank.steps.steps.size());
  for (const auto& step : rank.steps.overlaps) {
    all.overlap.computation += step.computation;
    all.overlap.communication += step.communication;
    all.overlap.overlap += step.overlap;
    all.overlap.other += step.other;
  }
  for (Ns* part : {&all.overlap.computation, &all.overlap.communication, &all.overlap.overlap, &all.overlap.other})
    *part /= count;
  rows.push_back(all);
  for (size_t i = 0; i < rank.steps.steps.size(); ++i)
    rows.push_back({rank.rank, rank.steps.steps[i].name, rank.steps.overlaps[i]});
}

}  // namespace

std::vector<Collective> collectives_of(const TraceEvents& trace, const StepView& steps) {
  std::vector<Collective> out;
  const auto kernels = kernels_of_collectives(trace);
  // Spans of the host alone are those of Gloo, or launches whose kernels are not in the trace.
  for (uint32_t i = 0; i < trace.host.size(); ++i) {
    if (trace.host[i].kind != HostKind::kCollective) continue;
    const auto found = kernels.find(i);
    out.push_back(
        collective_of(trace, steps, trace.host[i], found == kernels.end() ? std::vector<uint32_t>() : found->second));
  }
  // What was launched before the recording is not whole: other ranks may have none of it.
  std::vector<Collective> alone;
  for (const auto& event : trace.device) {
    if (!event.is_communication || event.collective != kNone) continue;
    if (event.launch != kNone || kernels.empty()) alone.push_back(kernel_alone(trace, steps, event));
  }
  if (kernels.empty() && !alone.empty())
    std::erase_if(out, [](const Collective& each) { return each.name.starts_with("nccl:"); });
  out.insert(out.end(), std::make_move_iterator(alone.begin()), std::make_move_iterator(alone.end()));
  std::stable_sort(out.begin(), out.end(), [](const Collective& a, const Collective& b) { return a.start < b.start; });
  return out;
}

std::optional<DistributedView> view_distributed(const std::vector<const TraceReport*>& ranks) {
  if (ranks.size() < 2) return std::nullopt;
  DistributedView view{.run = ranks[0]->run};
  for (const auto* rank : ranks) {
    const auto device = rank->gpus.empty() ? std::string("CPU") : rank->gpus[0].info.name;
    view.workers.push_back({rank->rank, rank->worker, device});
    add_overlap(*rank, view.overlap);
  }
  const auto world = ranks[0]->events.world_size;
  if (world > static_cast<int64_t>(ranks.size())) {
    view.missing = world - static_cast<int64_t>(ranks.size());
    view.warnings.push_back(
        levin::detail::concat(view.missing, " of ", world,
                              " ranks are not here: transfer, waiting and who was last are those of "
                              "these ",
                              ranks.size(), " alone"));
  }
  if (ranks[0]->collectives.empty()) return view;
  if (!same_collectives(ranks)) {
    view.warnings.emplace_back("the ranks have different collectives in their traces: waiting cannot be told");
    return view;
  }
  std::map<int64_t, StragglerRow> stragglers;
  const auto times = time_transfers(ranks, stragglers);
  for (size_t r = 0; r < ranks.size(); ++r) {
    view.waiting.push_back(waiting_of(ranks[r]->rank, "all", times[r]));
    for (const auto& step : ranks[r]->steps.steps)
      view.waiting.push_back(waiting_of(ranks[r]->rank, step.name, times[r]));
    add_operations(ranks[r]->rank, times[r], view.operations);
  }
  uint64_t count = 0;
  for (const auto& [rank, row] : stragglers) count += row.times_last;
  for (auto& [rank, row] : stragglers) {
    row.share = static_cast<double>(row.times_last) / static_cast<double>(count);
    view.stragglers.push_back(row);
  }
  std::stable_sort(view.stragglers.begin(), view.stragglers.end(),
                   [](const StragglerRow& a, const StragglerRow& b) { return a.late > b.late; });
  return view;
}

}  // namespace levin::report
