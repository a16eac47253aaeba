#include "levin/report/trace/ties.h"

#include <algorithm>
#include <map>
#include <set>

#include "levin/core/error.h"
#include "levin/report/trace/span_index.h"

namespace levin::report {
namespace {

using Keyed = std::pair<uint32_t, uint32_t>;  // a number of the trace, and a place in a list

/// Totals of devices whose totals are left out, or all 0: the sum of allocations and frees. What was allocated before
/// the recording shows only when it is freed in it.
void add_up_memory(std::vector<MemoryEvent>& events) {
  struct Sum {
    bool has_totals = false;
    int64_t now = 0, lowest = 0;
  };
  std::map<int16_t, Sum> sums;
  for (const auto& event : events) {
    auto& sum = sums[event.device];
    sum.has_totals |= event.allocated > 0;
    sum.now += event.bytes;
    sum.lowest = std::min(sum.lowest, sum.now);
  }
  for (auto& [device, sum] : sums) sum.now = -sum.lowest;
  for (auto& event : events) {
    auto& sum = sums[event.device];
    sum.now += event.bytes;
    if (!sum.has_totals) event.allocated = sum.now;
  }
}

/// ROCm numbers the devices of kernels as nodes of the machine, where processors are nodes, too; memory has PyTorch's
/// numbers. With one device of each kind they are the same one.
void number_devices(TraceEvents& trace) {
  if (!trace.is_amd) return;
  std::set<int16_t> of_work, of_memory;
  for (const auto& event : trace.device) of_work.insert(event.device);
  for (const auto& event : trace.memory) {
    if (event.device >= 0) of_memory.insert(event.device);
  }
  if (of_memory.empty() && trace.devices.size() == 1)
    of_memory.insert(static_cast<int16_t>(std::clamp<int64_t>(trace.devices[0].id, 0, 1023)));
  if (of_work.size() != 1 || of_memory.size() != 1 || of_work == of_memory) return;
  const auto number = *of_memory.begin();
  trace.warnings.push_back(levin::detail::concat("kernels are on device ", *of_work.begin(),
                                                 " as ROCm counts; it is taken for GPU ", number, ", the only one"));
  for (auto& event : trace.device) event.device = number;
  for (auto& range : trace.device_ranges) range.device = number;
}

class Ties {
 public:
  explicit Ties(TraceEvents& trace)
      : trace_(trace), index_(trace, [&](uint32_t i) {
          return trace.host[i].kind != HostKind::kAnnotation && trace.host[i].kind != HostKind::kModule;
        }) {}

  void tie() {
    launches();
    owners();
    collectives();
  }

 private:
  // A kernel belongs to the call with its correlation; of several the last.
  void launches() {
    std::vector<Keyed> calls;
    calls.reserve(trace_.calls.size());
    for (uint32_t i = 0; i < trace_.calls.size(); ++i) {
      if (trace_.calls[i].correlation != kNone) calls.emplace_back(trace_.calls[i].correlation, i);
    }
    std::sort(calls.begin(), calls.end());
    launches_.assign(trace_.calls.size(), false);
    for (auto& event : trace_.device) {
      if (event.correlation == kNone) continue;
      const auto after = std::upper_bound(calls.begin(), calls.end(), Keyed{event.correlation, kNone});
      if (after == calls.begin() || std::prev(after)->first != event.correlation) continue;
      event.launch = std::prev(after)->second;
      launches_[event.launch] = true;
    }
  }

  bool is_around(uint32_t span, const RuntimeCall& call) const {
    const auto& host = trace_.host[span];
    return host.thread == call.thread && host.start <= call.start && call.start < host.end();
  }

  // The operator that `External id` names; of several the one around the call.
  uint32_t named(const RuntimeCall& call) const {
    if (call.external == kNone || call.external == 0) return kNone;
    const auto first = std::lower_bound(ids_.begin(), ids_.end(), Keyed{call.external, 0});
    for (auto at = first; at != ids_.end() && at->first == call.external; ++at) {
      if (is_around(at->second, call)) return at->second;
    }
    return first != ids_.end() && first->first == call.external ? first->second : kNone;
  }

  // One such call may be chance, and so may be an operator with that number around one.
  bool ids_are_correlations() const {
    size_t equal = 0, both = 0;
    for (const auto& call : trace_.calls) {
      if (call.external == kNone || call.external == 0 || call.correlation == kNone) continue;
      ++both;
      equal += call.external == call.correlation;
    }
    return 2 * equal > both;
  }

  // Ids are trusted where most of those that name an operator name one around their call.
  bool ids_are_names() const {
    size_t around = 0, any = 0;
    for (const auto& call : trace_.calls) {
      const auto by_id = named(call);
      if (by_id == kNone) continue;
      ++any;
      around += is_around(by_id, call);
    }
    return 2 * around >= any;
  }

  // Of an operator around a call: it, or the collective inside it that made the call. Newer traces name
  // record_param_comms, the operator around nccl:all_reduce.
  uint32_t collective_in(uint32_t owner, uint32_t innermost) const {
    for (auto at = innermost; at != kNone && at != owner; at = index_.parent(at)) {
      if (trace_.host[at].kind == HostKind::kCollective) return at;
    }
    return owner;
  }

  // A call belongs to the operator that it names, where that runs around it. PyTorch of 2022 and 2023 wrote the
  // correlation of the call in place of the operator's id: then the operator that runs on its thread.
  void owners() {
    for (uint32_t i = 0; i < trace_.host.size(); ++i) {
      const auto& host = trace_.host[i];
      if (host.kind == HostKind::kAnnotation || host.kind == HostKind::kModule) continue;
      if (host.external != kNone && host.external != 0) ids_.emplace_back(host.external, i);
    }
    std::sort(ids_.begin(), ids_.end());
    const bool are_correlations = ids_are_correlations(), are_names = !are_correlations && ids_are_names();
    uint64_t by_others = 0, all = 0;
    for (uint32_t i = 0; i < trace_.calls.size(); ++i) {
      auto& call = trace_.calls[i];
      // Times of whole microseconds may put the start of a call before that of its operator; not its middle.
      const auto by_id = named(call), by_time = index_.at(call.thread, call.start + call.duration / 2);
      all += launches_[i];
      const bool is_named = by_id != kNone && is_around(by_id, call);
      if (are_names && by_id != kNone) {
        call.owner = is_named ? collective_in(by_id, by_time) : by_id;
      } else if (by_time != kNone) {
        call.owner = by_time;
        by_others += launches_[i] && !is_named && call.external != kNone && call.external != 0;
      } else if (!are_correlations) {
        call.owner = by_id;
      }
    }
    if (by_others > 0)
      trace_.warnings.push_back(levin::detail::concat(
          "the External id of ", by_others, " of ", all,
          " launches is that of no operator around them: their work counts for the operator that ran at their time"));
  }

  // Of kernels of a collective: its span, by what launched them, or by its id in older traces.
  void collectives() {
    const bool are_correlations = ids_are_correlations();
    std::map<uint32_t, uint32_t> by_id, of_owner;
    for (uint32_t i = 0; i < trace_.host.size(); ++i) {
      const auto& host = trace_.host[i];
      if (host.kind == HostKind::kCollective && host.external != kNone) by_id.emplace(host.external, i);
    }
    for (auto& event : trace_.device) {
      if (event.kind != DeviceKind::kKernel) continue;
      const auto owner = event.launch == kNone ? kNone : trace_.calls[event.launch].owner;
      if (owner != kNone) {
        const auto [at, is_new] = of_owner.emplace(owner, kNone);
        if (is_new) at->second = collective_around(owner);
        event.collective = at->second;
      } else if (!are_correlations) {
        const auto found = by_id.find(event.external);
        if (found != by_id.end()) event.collective = found->second;
      }
      event.is_communication = event.collective != kNone || is_communication_kernel(trace_.name(event.name));
    }
  }

  uint32_t collective_around(uint32_t span) const {
    for (auto at = span; at != kNone; at = index_.parent(at)) {
      if (trace_.host[at].kind == HostKind::kCollective) return at;
    }
    return kNone;
  }

  TraceEvents& trace_;
  SpanIndex index_;
  std::vector<Keyed> ids_;
  std::vector<bool> launches_;
};

}  // namespace

bool is_communication_kernel(std::string_view name) {
  if (name.starts_with("nccl")) return true;
  // Of NCCL within a namespace; of symmetric memory (PyTorch), vLLM and NVSHMEM.
  for (const std::string_view part : {"ncclDevKernel", "ncclKernel", "multimem_", "one_shot_all_reduce",
                                      "two_shot_all_reduce", "cross_device_reduce", "nvshmem"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

void tie_events(TraceEvents& trace) {
  add_up_memory(trace.memory);
  trace.is_amd |= std::any_of(trace.calls.begin(), trace.calls.end(),
                              [&](const RuntimeCall& call) { return trace.name(call.name).starts_with("hip"); });
  number_devices(trace);
  Ties(trace).tie();
}

}  // namespace levin::report
