#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "levin/report/report.h"

namespace levin::report {

/// A name in several runs. Values are of one step on average; differences are to the first run.
struct ComparedRow {
  std::string name;
  std::vector<double> calls, device_us, host_us, difference_us;
};

struct Comparison {
  std::vector<std::string> names;
  std::array<std::vector<double>, kParts> parts_us;
  std::vector<double> total_us;
  std::vector<ComparedRow> operators, kernels;
};

/// The first trace of each run. None for one run.
std::optional<Comparison> compare_runs(const Report& report);

}  // namespace levin::report
