#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "levin/report/report.h"

namespace levin::report {

/// What is compared of a run: all its traces, which are ranks and spans.
struct ComparedRun {
  std::string name;
  uint64_t traces = 0, ranks = 0, steps = 0;
};

/// A name in several runs. Values are of one step on average, over all ranks; differences are to the first run.
struct ComparedRow {
  std::string name;
  std::vector<double> calls, device_us, host_us, difference_us;
};

/// A unit of the model, with the units inside; one that a run does not have has 0 calls there. Parents stand first.
struct ComparedUnit {
  std::string name;
  /// A row before this one, or -1.
  int parent = -1;
  int depth = 0;
  std::vector<double> calls, device_us, host_us, difference_us;
};

/// A step by its name, or a rank by its number: the time of its steps on average; negative where a run has none.
struct ComparedStep {
  std::string name;
  std::vector<double> total_us;
};

struct Comparison {
  std::vector<ComparedRun> runs;
  std::array<std::vector<double>, kParts> parts_us;
  std::vector<double> total_us;
  std::vector<ComparedRow> operators, kernels;
  std::vector<ComparedUnit> units;
  std::vector<ComparedStep> steps, ranks;
  /// What makes the runs differ beside what they did.
  std::vector<std::string> warnings;
};

/// All traces of each run. None for one run.
std::optional<Comparison> compare_runs(const Report& report);

}  // namespace levin::report
