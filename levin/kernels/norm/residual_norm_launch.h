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
  /// Sums of columns of the branch's gradient, or null; by packs only.
  void* branch_sums = nullptr;
  /// [2, NormPlan::blocks, columns] of the statistics' type, with branch_sums [3, ...]; null where nobody wants sums.
  void* partials = nullptr;
  int64_t rows = 0, columns = 0;
  NumberType stream_type = NumberType::kNone, branch_type = NumberType::kNone, output_type = NumberType::kNone;
  bool weight_aligned = false;
  NumberType weight_type = NumberType::kNone, grad_weight_type = NumberType::kNone, grad_bias_type = NumberType::kNone;
  NumberType branch_sums_type = NumberType::kNone;
  bool rms = false;
  NormDropout dropout = {};
};

/// Warps of a block of backward, and numbers of a row that a thread has at most.
constexpr int kNormWarps = 8, kNormPerThread = 32;

/// How forward divides rows over the device.
struct NormForwardPlan {
  /// Rows are held in registers by packs of 16 bytes; else they are read three times, number by number.
  bool packs = false;
  /// Numbers of a row that one thread has (8, 16, 24 or 32), warps that share a row, rows of a block.
  int per_thread = 0, warps = 0, groups = 0;
};

/// `warps` that share a row; 0: as many as are best.
inline NormForwardPlan norm_forward_plan(int64_t rows, int64_t columns, NumberType stream_type, bool aligned,
                                         int processors, int warps = 0) {
  constexpr int64_t kMostWarps = 16, kBlockWarps = 4, kWarpsOfProcessor = 32;
  const int64_t per_thread = stream_type == NumberType::kDouble ? 16 : kNormPerThread;
  NormForwardPlan plan;
  plan.packs = aligned && columns % (16 / number_size(stream_type)) == 0 && columns <= 32 * per_thread * kMostWarps;
  if (!plan.packs) return plan;
  const auto parts = [&](int64_t size) { return (columns + size - 1) / size; };
  // Few rows: more threads for each, so that a row takes less time.
  const bool few = rows * parts(256) <= processors * kWarpsOfProcessor && parts(256) <= kMostWarps;
  plan.warps = static_cast<int>(warps > 0 ? warps : few ? parts(256) : parts(32 * per_thread));
  plan.per_thread = static_cast<int>(parts(256 * plan.warps) * 8);
  plan.groups = static_cast<int>(std::max<int64_t>(1, kBlockWarps / plan.warps));
  return plan;
}

/// How backward divides rows over the device.
struct NormPlan {
  /// Rows travel to shared memory in packs of 16 bytes, ahead of their turn; else they are read twice, number by
  /// number.
  bool packs = false;
  /// Numbers of a row that one thread has: 8, 16, 24 or 32.
  int per_thread = 0;
  /// Warps that share a row, rows that a block has at once, and places for rows that each of them has.
  int warps = 0, groups = 0, stages = 0;
  /// Bytes of shared memory of a block.
  int shared = 0;
  /// Blocks that walk over the rows, each with sums of columns of its own.
  int64_t blocks = 0;
};

/// What a device has: processors, and bytes of shared memory that one block may have.
struct NormDevice {
  int processors = 0, shared_memory = 0;
};

/// Blocks of the kernel that are resident together on a processor.
constexpr int norm_resident(int per_thread) {
  return per_thread <= 8 ? 3 : per_thread <= 16 ? 2 : 1;
}

/// `warps` that share a row; 0: as many as are best.
inline NormPlan norm_backward_plan(int64_t rows, int64_t columns, NumberType stream_type, NumberType output_type,
                                   bool aligned, const NormDevice& device, int warps = 0) {
  constexpr int kStages = 4;
  const int size = number_size(stream_type), output_size = number_size(output_type);
  const int64_t row_bytes = columns * (2 * size + output_size);
  NormPlan plan;
  // Where one warp could have a row of some length, two are faster: their registers leave room for a second block.
  const auto fewest = static_cast<int>((columns + 32 * kNormPerThread - 1) / (32 * kNormPerThread));
  plan.warps = warps > 0 ? warps : columns > 16 * kNormPerThread ? std::max(fewest, 2) : fewest;
  plan.per_thread = static_cast<int>((columns + 256 * plan.warps - 1) / (256 * plan.warps)) * 8;
  const int resident = norm_resident(plan.per_thread);
  constexpr int kOther = 4096;                                                  // bytes that are not for rows
  const int64_t room = (device.shared_memory - kOther) / resident / row_bytes;  // rows
  plan.packs = aligned && size <= 4 && columns % (16 / std::min(size, output_size)) == 0 && plan.warps <= kNormWarps &&
               room >= 2;
  if (!plan.packs) {
    // Sums of columns are a kernel of their own then, which divides rows into as many parts.
    plan.blocks = std::clamp<int64_t>(rows / 64, 1, 128);
    return plan;
  }
  plan.groups = static_cast<int>(std::min<int64_t>(kNormWarps / plan.warps, room / 2));
  plan.stages = static_cast<int>(std::min<int64_t>(kStages, room / plan.groups));
  plan.shared = static_cast<int>(plan.groups * plan.stages * row_bytes);
  plan.blocks = std::min<int64_t>((rows + plan.groups - 1) / plan.groups, int64_t{device.processors} * resident);
  return plan;
}

/// Which dtypes the kernels are made for. The branch is of the stream's dtype, or beside a float stream of the
/// output's (any where the output is float).
constexpr bool norm_knows(NumberType stream, NumberType branch, NumberType output) {
  if (stream != NumberType::kFloat) return branch == stream && output == stream;
  if (branch == NumberType::kDouble || output == NumberType::kDouble) return false;
  return branch == stream || branch == output || output == stream;
}

/// In residual_norm.cu and residual_norm_backward.cu; each returns a cudaError_t.
int launch_norm_forward(const NormForward& norm, const NormForwardPlan& plan, CUstream_st* stream);
int launch_norm_backward(const NormBackward& norm, const NormPlan& plan, CUstream_st* stream);

}  // namespace levin::kernels::detail
