#pragma once

#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "levin/data/dataset.h"

namespace levin {

struct TableOptions {
  /// Which columns, and in which order; empty: all that hold numbers.
  std::vector<std::string> columns = {};
  /// Put all columns but "label" side by side into one tensor [N, columns] of this name; empty: each column is a tensor
  /// of its own.
  std::string stack = {};
  /// The type of the stacked tensor.
  c10::ScalarType dtype = c10::kFloat;
  /// The format; by default what the path looks like (see open_records).
  std::string format = "auto";
};

/// A table (CSV, or other records of numbers) in memory: whole numbers become int64 [N], others double [N], or float
/// [N] where the file has floats of 32 bits; an empty cell is nan. A column "label" or "class" is the label; one of
/// text is numbered in the order of the alphabet.
///
///     auto iris = levin::load_table("iris.csv", {.stack = "input"});    // "input" float [150, 4], "label" int64 [150]
TensorDataset load_table(const std::string& path, const TableOptions& options = {});

}  // namespace levin
