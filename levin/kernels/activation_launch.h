#pragma once

#include <algorithm>
#include <cstdint>

#include "levin/kernels/activation_kinds.h"
#include "levin/kernels/number_type.h"

struct CUstream_st;

namespace levin::kernels::detail {

/// Tensors of one dtype and `numel` elements. Forward: `first` (and `second` of kGatedSilu) to `out`. Backward: the
/// gradient `grad` to `out`, of kGatedSilu to `out` and `second_out`.
struct ActivationPointers {
  const void *first = nullptr, *second = nullptr, *grad = nullptr;
  void *out = nullptr, *second_out = nullptr;
  int64_t numel = 0;
  NumberType type = NumberType::kNone;
  /// All pointers are multiples of 16 bytes.
  bool aligned = false;
};

/// The backward of an activation whose result is added up over its rows on the way. Numbers are 16-bit, `columns` is a
/// multiple of 8, all pointers are multiples of 16 bytes.
struct ActivationSums {
  const void *x = nullptr, *grad = nullptr;  // [rows, columns]
  void* out = nullptr;                       // [rows, columns]
  float* partials = nullptr;                 // [parts, columns]
  void* to = nullptr;                        // [columns]
  int64_t rows = 0, columns = 0, parts = 1;
  NumberType type = NumberType::kNone, to_type = NumberType::kNone;
};

/// Into how many parts the rows are divided: one wave of blocks, of 32 rows at least.
inline int64_t activation_sums_parts(int64_t rows, int64_t columns, int processors) {
  const int64_t across = (columns + 255) / 256;
  return std::clamp<int64_t>(4 * static_cast<int64_t>(processors) / across, 1, std::max<int64_t>(1, rows / 32));
}

/// In activation.cu; returns a cudaError_t.
int launch_activation_sums(const ActivationSums& sums, ActivationKind kind, CUstream_st* stream);

/// In activation.cu; returns a cudaError_t.
int launch_activation(const ActivationPointers& pointers, ActivationKind kind, bool backward, CUstream_st* stream);

}  // namespace levin::kernels::detail
