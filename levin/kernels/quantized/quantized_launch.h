#pragma once

#include <cstdint>

#include "levin/kernels/activation_kinds.h"
#include "levin/kernels/number_type.h"

struct CUstream_st;

/// The CUDA side of quantized weights, without a header of torch.
namespace levin::kernels::detail {

/// How the numbers of a matrix [rows, columns] are stored, row by row.
enum class WeightFormat : uint8_t {
  kPlain,  // in the dtype of the product
  kInt8,   // int8, times the largest number of the row / 127
  kFp8,    // float8 e4m3, times the scale of the row
  kInt4,   // two a byte, in the order of quantized_weight.h; a scale and a zero point for each group
  kNf4,    // two a byte, the first in the upper half; a scale for each group
};

/// A packed matrix on a GPU.
struct PackedMatrix {
  const void* codes = nullptr;
  /// kInt8: float [rows], the largest number of the row; kFp8: float [rows]. kInt4: half [rows, groups, 2], scale and
  /// zero point. kNf4: float [rows, groups], or uint8 with `nested_codes`.
  const void* scales = nullptr;
  /// Of scales that are quantized: nested_codes[scale] * nested[i / 256][0] + nested[i / 256][1], where i counts the
  /// groups of the matrix.
  const float* nested_codes = nullptr;
  const float* nested = nullptr;
  int64_t rows = 0, columns = 0;
  /// Columns that share a scale; a multiple of kPackedGroup.
  int64_t group = 0;
  WeightFormat format = WeightFormat::kPlain;
};

/// The code book of NF4, as bitsandbytes publishes it.
inline constexpr float kNf4Codes[16] = {-1.0f,
                                        -0.6961928009986877f,
                                        -0.5250730514526367f,
                                        -0.39491748809814453f,
                                        -0.28444138169288635f,
                                        -0.18477343022823334f,
                                        -0.09105003625154495f,
                                        0.0f,
                                        0.07958029955625534f,
                                        0.16093020141124725f,
                                        0.24611230194568634f,
                                        0.33791524171829224f,
                                        0.44070982933044434f,
                                        0.5626170039176941f,
                                        0.7229568362236023f,
                                        1.0f};
/// 1 / 127, as bitsandbytes writes it.
inline constexpr float kInt8Unit = 7.874015718698502e-3f;
inline constexpr int64_t kPackedGroup = 64;
inline constexpr int64_t kGroupsOfNested = 256;
/// Most rows of x that one pass of the skinny product takes; with a plain matrix from which cuBLAS is faster with more.
inline constexpr int64_t kSkinnyRows = 8, kSkinnyPlainRows = 2;
/// Most rows of x for which the tile product is faster than a copy of the matrix in 16 bits.
inline constexpr int64_t kTileRows = 64;
/// Columns of a plain matrix are a multiple.
inline constexpr int64_t kSkinnyColumns = 32;

/// Writes the matrix as plain numbers, kHalf, kBFloat16 or kFloat.
int launch_dequantize(const PackedMatrix& matrix, void* to, NumberType type, CUstream_st* stream);

/// y [m, rows] = x [m, columns] times the transposed matrix, plus a bias of [rows] or none; all of `type`, kHalf or
/// kBFloat16. Columns are a multiple of kPackedGroup (kPlain: of 32), pointers of 16 bytes; groups are kPackedGroup
/// times a power of two.
struct PackedLinear {
  PackedMatrix matrix;
  const void* x = nullptr;
  const void* bias = nullptr;
  void* y = nullptr;
  int64_t m = 0;
  NumberType type = NumberType::kHalf;
  /// Nothing that is still running writes the matrix.
  bool early_matrix = false;
  /// Set by the launch: a group is kPackedGroup << group_shift.
  int group_shift = 0;
};

/// A product of m up to kSkinnyRows. What follows it is part of it:
///     y = residual + activation(x W^T + bias), or residual + silu(x W^T + bias) * (x U^T + up_bias)
struct SkinnyLinear : PackedLinear {
  /// Of kGatedSilu: U, of the sizes and the format of `matrix`.
  PackedMatrix up;
  const void* up_bias = nullptr;
  /// [m, rows], or null; may be y.
  const void* residual = nullptr;
  RowActivation activation = RowActivation::kNone;

  /// An RMS norm between two products is half in each. Of the first: the weight of the norm [rows], where the result
  /// times this weight is written [m, rows], and for each kSquaredRows results the sum of their squares, float
  /// [m, squares_of(rows)]. Not of kGatedSilu.
  const void* norm_weight = nullptr;
  void* weighted = nullptr;
  float* squares_out = nullptr;
  /// Of the second, whose x is `weighted`: those sums. It stands for x / sqrt(sum / columns + eps).
  const float* squares = nullptr;
  int squares_count = 0;
  float eps = 0;
};
inline constexpr int64_t kSquaredRows = 16;
constexpr int64_t squares_of(int64_t rows) {
  return (rows + kSquaredRows - 1) / kSquaredRows;
}
int launch_skinny_linear(const SkinnyLinear& product, CUstream_st* stream);

/// A product of more rows than the skinny one takes; formats but kPlain. A row of y does not depend on how many there
/// are.
struct TileLinear : PackedLinear {
  /// Of the device: as many blocks as they take are at work at once.
  int processors = 0;
};
int launch_tile_linear(const TileLinear& product, CUstream_st* stream);

}  // namespace levin::kernels::detail
