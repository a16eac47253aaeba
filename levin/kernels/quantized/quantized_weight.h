#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

enum class Quantization : uint8_t {
  /// LLM.int8 of bitsandbytes: weights and activations in 8 bits, columns of activations with outliers apart.
  kInt8,
  /// The same weights; activations as they are.
  kInt8Weights,
  /// 16 steps between the smallest and the largest number of a group.
  kInt4,
  /// NF4 of bitsandbytes: 16 quantiles of a normal distribution, times the largest number of a group.
  kNf4,
  /// float8 e4m3, times a scale of the row.
  kFp8,
};

struct QuantizeOptions {
  Quantization kind = Quantization::kNf4;
  /// Columns that share a scale, of kInt4 and kNf4: a multiple of 64. 0: 128 and 64.
  int64_t group = 0;
  /// Of kNf4: the scales are quantized too, as bitsandbytes does it. 4.13 bits a weight rather than 4.5.
  bool nested = false;
  /// Of kInt8: columns of x with a number of this size or more are multiplied in the dtype of x.
  double threshold = 6;

  bool has_groups() const { return kind == Quantization::kInt4 || kind == Quantization::kNf4; }
  bool operator==(const QuantizeOptions&) const = default;
};

/// "int8", "int8-weights", "int4", "nf4", "nf4-double" or "fp8"; "int4:64" has groups of 64. An Error names the words
/// that are known. `operation` stands in it.
QuantizeOptions quantization_of(const char* operation, std::string_view word);
/// The word of options.
std::string quantization_name(const QuantizeOptions& options);

/// A matrix [rows, columns] in few bits. All its tensors are bytes, so that no cast of a module to a dtype changes
/// them.
struct QuantizedWeight {
  QuantizeOptions options;
  int64_t columns = 0;
  /// [rows, bytes of a row]. Two numbers a byte with 4 bits. kNf4: the first in the upper half. kInt4: of each eight,
  /// numbers 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on, so that a kernel takes pairs out of a word.
  Tensor codes;
  /// [rows, bytes]: kInt8, kInt8Weights: the largest number of a row, float; kFp8: float; kInt4: for each group a scale
  /// and a zero point, half; kNf4: a float for each group, or a code where `nested` is defined.
  Tensor scales;
  /// [n, 8]: for each 256 groups a scale and an offset, float.
  Tensor nested;

  int64_t rows() const { return codes.size(0); }
  int64_t nbytes() const;
};

/// A matrix of floating numbers in few bits, on its device (CPU, CUDA; meta tensors give meta tensors). `parts`: rows
/// of matrices that are joined in it; with nested scales each has its own offset.
///
///     auto packed = levin::kernels::quantize(weight, {.kind = levin::kernels::Quantization::kNf4});
///     auto y = levin::kernels::quantized_linear(x, packed);
QuantizedWeight quantize(const Tensor& weight, QuantizeOptions options, const std::vector<int64_t>& parts = {});

/// What it stands for.
Tensor dequantize(const QuantizedWeight& weight, at::ScalarType dtype);

/// x [..., columns] times the transposed weight plus bias [rows] (may be undefined), in the dtype of x or of autocast.
/// Up to 8 rows of x, on a Hopper GPU 64, are multiplied with the packed numbers; more with a copy of the weight, which
/// is not kept. The weight is frozen: x and bias have gradients.
Tensor quantized_linear(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias = {});

}  // namespace levin::kernels
