#pragma once

#include <algorithm>
#include <cstdint>

#include "levin/kernels/number_type.h"

struct CUstream_st;

namespace levin::kernels::detail {

struct ColumnSum {
  const void* from = nullptr;  // [rows, columns]
  void* to = nullptr;          // [columns]
  /// [parts, columns] float, of double inputs double; not used where there is one part.
  void* partials = nullptr;
  int64_t rows = 0, columns = 0, parts = 1;
  NumberType from_type = NumberType::kNone, to_type = NumberType::kNone;
  bool aligned = false;
};

/// Into how many parts the rows are divided: enough blocks to fill the device, of 32 rows at least.
inline int64_t column_sum_parts(int64_t rows, int64_t columns, NumberType type, int processors) {
  const int64_t across = std::max<int64_t>(1, columns / (32 * (16 / number_size(type))));
  return std::clamp<int64_t>(8 * static_cast<int64_t>(processors) / across, 1, std::max<int64_t>(1, rows / 32));
}

/// In linear.cu; returns a cudaError_t.
int launch_column_sum(const ColumnSum& sum, CUstream_st* stream);

}  // namespace levin::kernels::detail
