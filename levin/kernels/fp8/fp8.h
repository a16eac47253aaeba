#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include "levin/kernels/activation.h"

namespace levin::kernels {

using at::Tensor;

/// Where the scale comes from that brings numbers into the range of float8.
enum class Fp8Recipe : uint8_t {
  /// One scale per tensor, from the largest numbers of the last steps: one pass over the tensor.
  kDelayed,
  /// One scale per tensor, from the tensor itself: two passes.
  kCurrent,
  /// One scale per row of the left and per column of the right operand, from the tensor itself.
  kRow
};

/// How linear layers multiply in float8. Inputs and weights are e4m3. Gradients are e5m2, with kRow e4m3.
struct Fp8Options {
  Fp8Recipe recipe = Fp8Recipe::kDelayed;
  /// Powers of two of the range that stay free above the largest number.
  int margin = 0;
  /// The same for gradients with kDelayed: they may grow that much from one step to the next. e5m2 has range to spare.
  int gradient_margin = 3;
  /// Steps that kDelayed remembers.
  int64_t history = 16;
  /// The first and the last weight of a module stay out of it.
  bool keep_ends = true;

  bool operator==(const Fp8Options&) const = default;
};

/// Sizes of a weight must be multiples of it: the products of the tensor cores ask for that.
constexpr int64_t kFp8Multiple = 16;

/// A matrix in float8, and what its codes must be multiplied with.
struct Fp8Cast {
  Tensor rows;            // [M, K]
  Tensor columns;         // [K, M rounded up to kFp8Multiple], the rest zero
  Tensor inverse;         // [1], or [M, 1]
  Tensor column_inverse;  // [1], or [K, 1]
  Tensor sums;            // [K], where they are wanted
};

struct Fp8CastOptions {
  c10::ScalarType dtype = at::kFloat8_e4m3fn;
  bool per_row = false;
  /// Which of the two layouts are wanted.
  bool rows = true;
  bool columns = true;
  int margin = 0;
  /// The activation of x is cast in place of x; with `derivative_at` [M, K], of one dtype with x, the product of x with
  /// the activation's derivative there. Part of the same pass for bfloat16 with `amax`, else one of its own before it.
  std::optional<Activation> activation = {};
  Tensor derivative_at = {};
  /// Sums over the rows of what is cast, in this dtype: the gradient of a bias.
  std::optional<c10::ScalarType> sums = {};
};

/// x [M, K] (float, half, bfloat16; K a multiple of 16) in float8, both layouts in one pass. Scales are powers of two,
/// so the only rounding is that of float8. What is too large becomes the largest number; inf and nan become nan.
///
/// `amax` [1]: the scale is made for numbers up to it; undefined: for those of x. `seen` [1]: becomes the largest
/// finite |x| if that is larger; may be undefined. Nothing waits for the device.
Fp8Cast fp8_cast(const Tensor& x, const Tensor& amax, const Tensor& seen, const Fp8CastOptions& options = {});

/// a [M, K] times b [N, K] transposed, in `dtype`, plus bias [N] if it is defined. On the CPU it is emulated in
/// float32.
Tensor fp8_mm(const Tensor& a, const Tensor& b, const Tensor& inverse_a, const Tensor& inverse_b, const Tensor& bias,
              c10::ScalarType dtype, bool fast_accumulation);

/// Moves `seen` [S] into `history` [S, H] as its newest column, sets it to 0, and gives the largest of each row [S].
/// A row that saw nothing (0) stays as it is.
Tensor fp8_roll(const Tensor& history, const Tensor& seen);

}  // namespace levin::kernels
