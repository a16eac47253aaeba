#pragma once

#include <algorithm>
#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of batch_norm.cu and batch_norm_backward.cu are told: pointers, sizes and a stream, without a
/// header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// One number for each channel, in a dtype of its own; `data` is null where the layer has none.
struct ChannelNumbers {
  void* data = nullptr;
  NumberType type = NumberType::kNone;
};

/// A channels-last tensor as a matrix: a row is a pixel, a column a channel.
struct BatchNormShape {
  int64_t rows = 0;
  int64_t channels = 0;
  NumberType type = NumberType::kFloat;
  /// Rows are whole vectors of 16 bytes, and every pointer stands at one.
  bool vectors = false;
  int multiprocessors = 1;
};

/// How a kernel goes over the rows: the threads of a block, how many blocks a multiprocessor holds, and how many rows a
/// thread reads at once.
struct BatchNormLoop {
  int threads, resident, unrolled;
};
constexpr BatchNormLoop kStatisticsLoop{512, 2, 4}, kNormalizeLoop{512, 2, 2}, kBackwardLoop{512, 1, 4};

/// A block has a strip of channels, 128 bytes wide where rows are vectors.
constexpr int strip_columns(bool vectors) {
  return vectors ? 8 : 32;
}

/// A block is `columns` threads wide, each with `width` channels. There are `strips` blocks beside each other, and
/// `parts` below each other, which take turns at the rows.
struct BatchNormPlan {
  int width = 1;
  int columns = 1;  // a power of 2
  int64_t strips = 1;
  int64_t parts = 1;
};

inline BatchNormPlan plan_batch_norm(const BatchNormShape& shape, const BatchNormLoop& loop) {
  BatchNormPlan plan;
  plan.width = shape.vectors ? 16 / number_size(shape.type) : 1;
  const int64_t vectors = shape.channels / plan.width;
  while (plan.columns < strip_columns(shape.vectors) && plan.columns < vectors) plan.columns *= 2;
  plan.strips = (vectors + plan.columns - 1) / plan.columns;
  const int64_t height = loop.threads / plan.columns;
  const int64_t blocks = static_cast<int64_t>(shape.multiprocessors) * loop.resident;
  plan.parts =
      std::clamp<int64_t>(blocks / plan.strips, 1, std::min<int64_t>((shape.rows + height - 1) / height, 65535));
  return plan;
}

/// How many rows each part has: every `parts`-th tile of `height` rows, of which the last tile may miss some.
struct BatchNormParts {
  int parts = 1;
  int tiles = 1, longer = 0;  // of each part; the first `longer` ones have one more
  int height = 1;
  int last = 0, missing = 0;
};

inline BatchNormParts parts_of(const BatchNormShape& shape, const BatchNormLoop& loop) {
  const auto plan = plan_batch_norm(shape, loop);
  const int64_t height = loop.threads / plan.columns, tiles = (shape.rows + height - 1) / height;
  return {static_cast<int>(plan.parts),
          static_cast<int>(tiles / plan.parts),
          static_cast<int>(tiles % plan.parts),
          static_cast<int>(height),
          static_cast<int>((tiles - 1) % plan.parts),
          static_cast<int>(tiles * height - shape.rows)};
}

/// How x becomes y: mean and variance of a batch or of many, weight and bias.
struct BatchNormAffine {
  ChannelNumbers mean, spread, weight, bias;
  bool spread_is_variance = false;  // otherwise it is the inverse standard deviation
  double eps = 0;
};

/// Sums are float, or double for double.
struct BatchNormLaunch {
  BatchNormShape shape;
  const void* x = nullptr;
  const void* residual = nullptr;  // or null
  void* y = nullptr;
  /// In training, `mean` and `spread` are those that run along, and are updated.
  BatchNormAffine affine;
  double momentum = 0;
  bool relu = false;
  /// Of training, or null: partial sums [parts of kStatisticsLoop, 2, channels], and the statistics [2, channels]: mean
  /// and inverse standard deviation.
  void* partial = nullptr;
  void* statistics = nullptr;
  int64_t* batches = nullptr;  // counted up when training, or null
  /// Which channels the ReLU let through, a bit each, one byte for the `width` channels of a thread; or null.
  uint8_t* passed = nullptr;
};

/// From where it is known what the ReLU let through: it is all, the bits of forward say so, or x does.
enum class ReluMask : int { kNone, kBits, kInput };

struct BatchNormBackwardLaunch {
  BatchNormShape shape;
  BatchNormAffine affine;
  ReluMask mask = ReluMask::kNone;
  const void* dy = nullptr;
  const void* x = nullptr;
  const uint8_t* passed = nullptr;  // of ReluMask::kBits
  void* masked = nullptr;           // the gradient after the mask, or null
  void* dx = nullptr;               // or null
  /// Sums over the batch [parts of kBackwardLoop, 2, channels], or null where nobody needs them.
  void* partial = nullptr;
  bool of_batch = false;  // the statistics came from x, so dx goes through them too
  ChannelNumbers grad_weight, grad_bias;
};

/// In batch_norm.cu and batch_norm_backward.cu; each returns a cudaError_t.
int launch_batch_norm(const BatchNormLaunch& launch, CUstream_st* stream);
int launch_batch_norm_backward(const BatchNormBackwardLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
