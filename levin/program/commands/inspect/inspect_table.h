#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "levin/io/weights/weights.h"

namespace levin::cli {

/// The values of the flags of `levin inspect`.
struct InspectFlags {
  std::string file, sort, root = "auto", quantize;
  std::vector<std::string> filter;
  bool stats = false, verify = false, json = false;
};

struct WeightStats {
  double mean = 0, std = 0, min = 0, max = 0;
  int64_t nan = 0;
};
/// Of a tensor of numbers; NaN are counted and left out of the rest.
std::optional<WeightStats> stats_of(const Tensor& tensor);

/// One tensor of what is inspected.
struct InspectRow {
  WeightEntry entry;
  /// Which files hold it; shown when any row says so.
  std::string held = {};
  std::optional<WeightStats> stats = {};
};

/// The rows that --filter lets through, in the order that --sort asks for.
std::vector<InspectRow> choose_rows(std::vector<InspectRow> rows, const InspectFlags& flags);
/// Fills in the stats, with a progress bar.
void add_stats(std::vector<InspectRow>& rows, const std::function<Tensor(const std::string& name)>& read);

/// A line for each tensor.
std::string table_text(const std::vector<InspectRow>& rows, bool with_stats);
/// "3 tensors with 1.2k elements in 4.8 kB"
std::string total_text(const std::vector<InspectRow>& rows);

/// `levin inspect FOLDER` of a checkpoint.
int inspect_checkpoint(const InspectFlags& flags);

}  // namespace levin::cli
