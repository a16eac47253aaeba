#pragma once

#include <cstdint>

#include "levin/kernels/activation_launch.h"

/// What the kernels of fp8.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

enum class Fp8From : uint8_t { kFloat, kHalf, kBFloat16 };
/// What becomes of numbers before they are cast: nothing, their activation, or, of a gradient, its product with the
/// derivative of the activation.
enum class Fp8Before : uint8_t { kNothing, kActivation, kDerivative };

constexpr int64_t kFp8TileRows = 64;

/// A matrix to float8. `columns` is a multiple of 16, and all pointers are multiples of 16 bytes but those to floats.
/// With an activation it is of bfloat16, and has one scale.
struct Fp8CastLaunch {
  const void* in = nullptr;  // [rows, columns]
  Fp8From type = Fp8From::kFloat;
  bool e5m2 = false;
  bool per_row = false;
  int32_t margin = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t padded_rows = 0;             // a multiple of 16
  const float* amax = nullptr;         // [1], or [rows]
  const float* column_amax = nullptr;  // [columns], per row only
  float* seen = nullptr;               // [1], or null
  uint8_t* out = nullptr;              // [rows, columns], or null
  uint8_t* transposed = nullptr;       // [columns, padded_rows], or null
  float* inverse = nullptr;            // as amax
  float* column_inverse = nullptr;     // as column_amax
  Fp8Before before = Fp8Before::kNothing;
  ActivationKind activation = ActivationKind::kGelu;
  const void* derivative_at = nullptr;  // as `in`
  float* partials = nullptr;            // [tiles of rows, columns], or null
  void* sums = nullptr;                 // [columns]: sums of what is cast, before it is
  NumberType sums_type = NumberType::kNone;
};

/// The largest finite numbers of a matrix. The results must be 0 before.
struct Fp8AmaxLaunch {
  const void* in = nullptr;
  Fp8From type = Fp8From::kFloat;
  bool per_row = false;
  int64_t rows = 0;
  int64_t columns = 0;
  float* amax = nullptr;         // [1], or [rows]
  float* column_amax = nullptr;  // [columns], per row only
};

struct Fp8RollLaunch {
  float* history = nullptr;  // [slots, length]
  float* seen = nullptr;     // [slots]
  float* amax = nullptr;     // [slots]
  int64_t slots = 0;
  int64_t length = 0;
};

/// In fp8.cu; each returns a cudaError_t.
int launch_fp8_cast(const Fp8CastLaunch& launch, CUstream_st* stream);
int launch_fp8_amax(const Fp8AmaxLaunch& launch, CUstream_st* stream);
int launch_fp8_roll(const Fp8RollLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
