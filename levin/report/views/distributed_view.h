#pragma once

#include <optional>
#include <string>
#include <vector>

#include "levin/report/views/steps.h"

namespace levin::report {

struct TraceReport;

/// One collective of one rank: its kernels, or its span on the host where there are none.
struct Collective {
  std::string name, step;
  Ns start = 0;
  /// Of the input; negative when the trace does not say.
  int64_t bytes = -1;
  Ranges ranges;
  /// With the span on the host beside the kernels, as PyTorch's TensorBoard plugin counts it.
  Ranges with_host;
};

std::vector<Collective> collectives_of(const TraceEvents& trace, const StepView& steps);

struct OverlapRow {
  int64_t rank = 0;
  std::string step;
  Overlap overlap;
};
struct WaitingRow {
  int64_t rank = 0;
  std::string step;
  Ns transfer = 0, synchronizing = 0;
  /// By the plugin's ranges: with the host part.
  Ns tb_transfer = 0, tb_synchronizing = 0;
};
struct OperationRow {
  int64_t rank = 0;
  std::string name;
  uint64_t calls = 0;
  /// Negative when the trace does not say.
  int64_t bytes = 0;
  Ns latency = 0, transfer = 0;
  Ns tb_latency = 0, tb_transfer = 0;
};
/// A rank that others waited for.
struct StragglerRow {
  int64_t rank = 0;
  /// By how much it was later than the first, over all collectives.
  Ns late = 0;
  uint64_t times_last = 0;
  double share = 0;
};

struct DistributedView {
  std::string run;
  struct Worker {
    int64_t rank = 0;
    std::string name, device;
  };
  std::vector<Worker> workers;
  std::vector<OverlapRow> overlap;
  std::vector<WaitingRow> waiting;
  std::vector<OperationRow> operations;
  std::vector<StragglerRow> stragglers;
  /// Ranks of the world that no trace is there of.
  int64_t missing = 0;
  std::vector<std::string> warnings;
};

/// The ranks of one run. A collective lasts on each rank until the last has come: the shortest is the transfer, what
/// the others take longer is waiting. Clocks of ranks need not agree. None for one rank.
std::optional<DistributedView> view_distributed(const std::vector<const TraceReport*>& ranks);

}  // namespace levin::report
