#pragma once

#include <algorithm>
#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of residual_norm are told: pointers, sizes and numbers, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Which elements of the branch are dropped: a function of a seed, an offset and the element's index.
struct NormDropout {
  /// False: nothing is dropped, and nothing else counts.
  bool enabled = false;
  /// An element is dropped when its random number is below this; the others get the factor.
  uint32_t dropped_below = 0;
  double kept = 1;
  /// In a captured graph the numbers are where these point to, `offset` on top; else they are `seed` and `offset`.
  const int64_t* seed_pointer = nullptr;
  const int64_t* offset_pointer = nullptr;
  uint64_t seed = 0, offset = 0;
  /// Two numbers that forward writes and backward reads: the seed and the offset.
  int64_t* used = nullptr;
};

inline NormDropout norm_dropout(double p, int64_t* used) {
  NormDropout dropout;
  if (p <= 0) return dropout;
  dropout.enabled = true;
  dropout.dropped_below = p < 1 ? static_cast<uint32_t>(std::min(p * 4294967296.0, 4294967295.0)) : 0xffffffffu;
  dropout.kept = p < 1 ? 1 / (1 - p) : 0;
  dropout.used = used;
  return dropout;
}

/// stream [rows, columns] (+ branch) to sum, and norm of it to output. Statistics are float, of double inputs double.
struct NormForward {
  const void *stream = nullptr, *branch = nullptr, *weight = nullptr, *bias = nullptr;
  void *output = nullptr, *sum = nullptr, *mean = nullptr, *rstd = nullptr;
  int64_t rows = 0, columns = 0;
  NumberType stream_type = NumberType::kNone, branch_type = NumberType::kNone, output_type = NumberType::kNone;
  NumberType weight_type = NumberType::kNone, bias_type = NumberType::kNone;
  /// Weight and bias lie at multiples of 16 bytes.
  bool weight_aligned = false;
  double eps = 0;
  bool rms = false;
  NormDropout dropout = {};
};

/// Either gradient may be null. grad_branch is null where it is the same as grad_sum.
struct NormBackward {
  const void *grad_output = nullptr, *grad_stream = nullptr, *stream = nullptr, *weight = nullptr;
  const void *mean = nullptr, *rstd = nullptr;
  void *grad_sum = nullptr, *grad_branch = nullptr, *grad_weight = nullptr, *grad_bias = nullptr;
  /// [2, NormPlan::blocks, columns] of the statistics' type; null where neither weight nor bias wants a gradient.
  void* partials = nullptr;
  int64_t rows = 0, columns = 0;
  NumberType stream_type = NumberType::kNone, branch_type = NumberType::kNone, output_type = NumberType::kNone;
  bool weight_aligned = false;
  NumberType weight_type = NumberType::kNone, grad_weight_type = NumberType::kNone, grad_bias_type = NumberType::kNone;
  bool rms = false;
  NormDropout dropout = {};
};

/// How backward divides rows over the device.
struct NormPlan {
  /// Rows are held in registers by packs of 16 bytes; else they are read twice, number by number.
  bool packs = false;
  /// Numbers of a row that one thread holds.
  int per_thread = 0;
  /// Warps that share a row, and rows that a block has at once.
  int warps = 0, groups = 0;
  /// Blocks that walk over the rows, each with sums of columns of its own.
  int64_t blocks = 0;
};

inline NormPlan norm_backward_plan(int64_t rows, int64_t columns, NumberType stream_type, bool aligned,
                                   int processors) {
  const int size = number_size(stream_type);
  const int most_threads = size == 8 ? 256 : 512;
  const int64_t most = size == 8 ? 8 * most_threads : 16 * most_threads;
  NormPlan plan;
  plan.packs = aligned && columns % (16 / size) == 0 && columns <= most;
  if (!plan.packs) {
    // Sums of columns are a kernel of their own then, which divides rows into as many parts.
    plan.blocks = std::clamp<int64_t>(rows / 64, 1, 128);
    return plan;
  }
  plan.per_thread = columns <= 8 * most_threads ? 8 : 16;
  plan.warps = static_cast<int>((columns + 32 * plan.per_thread - 1) / (32 * plan.per_thread));
  plan.groups = plan.warps == 1 ? 4 : 1;
  // As many as are resident together, and some rows for each: more would only be more sums to add up.
  const int resident = (size == 2 ? 768 : size == 4 ? 512 : 256) / (32 * plan.warps * plan.groups);
  const int64_t least = 3 * plan.groups;
  plan.blocks = std::min<int64_t>((rows + least - 1) / least, static_cast<int64_t>(processors) * std::max(resident, 1));
  return plan;
}

/// Which dtypes the kernels are made for. The branch is of the stream's dtype, or beside a float stream of the
/// output's (any where the output is float).
constexpr bool norm_knows(NumberType stream, NumberType branch, NumberType output) {
  if (stream != NumberType::kFloat) return branch == stream && output == stream;
  if (branch == NumberType::kDouble || output == NumberType::kDouble) return false;
  return branch == stream || branch == output || output == stream;
}

/// In residual_norm.cu and residual_norm_backward.cu; each returns a cudaError_t. `aligned`: pointers to rows are
/// multiples of 16 bytes.
int launch_norm_forward(const NormForward& norm, bool aligned, CUstream_st* stream);
int launch_norm_backward(const NormBackward& norm, const NormPlan& plan, CUstream_st* stream);

}  // namespace levin::kernels::detail
