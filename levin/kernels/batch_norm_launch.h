#pragma once

#include <algorithm>
#include <cstdint>

/// What the kernels of batch_norm.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

enum class BatchNormType : int { kFloat, kHalf, kBFloat16, kDouble };

/// One number for each channel, in a dtype of its own; `data` is null where the layer has none.
struct ChannelNumbers {
  void* data = nullptr;
  BatchNormType type = BatchNormType::kFloat;
};

/// A channels-last tensor as a matrix: a row is a pixel, a column a channel.
struct BatchNormShape {
  int64_t rows = 0;
  int64_t channels = 0;
  BatchNormType type = BatchNormType::kFloat;
  /// Rows are whole vectors of 16 bytes, and every pointer stands at one.
  bool vectors = false;
  int multiprocessors = 1;
};

/// How a kernel goes over the matrix. A block is `columns` threads wide, each with one vector of channels, and goes
/// down the rows in tiles of `tile` rows, every `parts`-th tile.
struct BatchNormPlan {
  int width = 1;    // channels of a thread
  int columns = 1;  // threads beside each other: a power of 2, at most 32
  int64_t strips = 1;
  int64_t parts = 1;
  int64_t tile = 1;
};

constexpr int kBatchNormThreads = 256;

/// `resident` is how many blocks of the kernel a multiprocessor holds, `unrolled` how many rows a thread reads at once.
inline BatchNormPlan plan_batch_norm(const BatchNormShape& shape, int resident, int unrolled) {
  const int bytes = shape.type == BatchNormType::kDouble ? 8 : shape.type == BatchNormType::kFloat ? 4 : 2;
  BatchNormPlan plan;
  plan.width = shape.vectors ? 16 / bytes : 1;
  const int64_t vectors = shape.channels / plan.width;
  while (plan.columns < 32 && plan.columns < vectors) plan.columns *= 2;
  plan.strips = (vectors + plan.columns - 1) / plan.columns;
  plan.tile = static_cast<int64_t>(kBatchNormThreads / plan.columns) * unrolled;
  const int64_t tiles = (shape.rows + plan.tile - 1) / plan.tile;
  const int64_t blocks = static_cast<int64_t>(shape.multiprocessors) * resident;
  plan.parts = std::clamp<int64_t>(blocks / plan.strips, 1, std::min<int64_t>(tiles, 65535));
  return plan;
}

constexpr int kStatisticsResident = 4, kStatisticsUnrolled = 4;
constexpr int kBackwardResident = 3, kBackwardUnrolled = 2;

inline BatchNormPlan plan_statistics(const BatchNormShape& shape) {
  return plan_batch_norm(shape, kStatisticsResident, kStatisticsUnrolled);
}
inline BatchNormPlan plan_backward(const BatchNormShape& shape) {
  return plan_batch_norm(shape, kBackwardResident, kBackwardUnrolled);
}

/// How x becomes y: mean, inverse standard deviation (or the variance, in evaluation), weight and bias.
struct BatchNormAffine {
  ChannelNumbers mean, spread, weight, bias;
  bool spread_is_variance = false;
  double eps = 0;
};

/// Sums are float, or double for double.
struct StatisticsLaunch {
  BatchNormShape shape;
  const void* x = nullptr;
  void* partial = nullptr;     // [parts, 2, channels], sums
  void* statistics = nullptr;  // [2, channels], sums: mean and inverse standard deviation
  ChannelNumbers running_mean, running_var;
  double momentum = 0;
  double eps = 0;
};

struct NormalizeRowsLaunch {
  BatchNormShape shape;
  const void* x = nullptr;
  const void* residual = nullptr;  // or null
  void* y = nullptr;
  BatchNormAffine affine;
  bool relu = false;
};

/// Where the ReLU let gradients through.
enum class ReluMask : int { kNone, kOutput, kInput };

struct BatchNormBackwardLaunch {
  BatchNormShape shape;
  BatchNormAffine affine;
  ReluMask mask = ReluMask::kNone;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* y = nullptr;  // of ReluMask::kOutput
  void* masked = nullptr;   // the gradient after the mask, or null
  void* partial = nullptr;  // [parts, 2, channels], sums
  void* sums = nullptr;     // [2, channels], sums; null in the pass for dx: the statistics are constants
  ChannelNumbers grad_weight, grad_bias;
  void* dx = nullptr;
};

/// In batch_norm.cu; each returns a cudaError_t.
int launch_batch_norm_statistics(const StatisticsLaunch& launch, CUstream_st* stream);
int launch_normalize_rows(const NormalizeRowsLaunch& launch, CUstream_st* stream);
int launch_batch_norm_backward_sums(const BatchNormBackwardLaunch& launch, CUstream_st* stream);
int launch_batch_norm_backward_input(const BatchNormBackwardLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
