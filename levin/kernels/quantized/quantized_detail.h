#pragma once

#include <array>

#include "levin/kernels/quantized/quantized_launch.h"
#include "levin/kernels/quantized/quantized_weight.h"

namespace levin::kernels::detail {

/// The code book of NF4, as bitsandbytes publishes it.
inline constexpr std::array<float, 16> kNf4Codes{-1.0f,
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

/// Pointers and sizes of a weight. The codes of nested scales are given on the CPU alone.
PackedMatrix packed_matrix(const QuantizedWeight& weight);
/// Errors for tensors that are no such weight: moved to another dtype, or to different devices.
void check_packed(const char* operation, const QuantizedWeight& weight);

/// What fits skinny_linear: few rows, and a dtype that it has.
bool runs_skinny(const Tensor& rows, const QuantizedWeight& weight);

Tensor dequantize_cpu(const QuantizedWeight& weight, at::ScalarType dtype);
/// x [m, columns], m up to kSkinnyRows; bias may be undefined.
Tensor skinny_linear_cpu(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias);
/// a [m, k] times the transposed b [n, k], both int8, to int32 [m, n].
Tensor int8_product_cpu(const Tensor& a, const Tensor& b);

/// In quantized_cuda.cpp, or no_cuda.cpp where there is no CUDA.
Tensor dequantize_cuda(const QuantizedWeight& weight, at::ScalarType dtype);
Tensor skinny_linear_cuda(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias);

}  // namespace levin::kernels::detail
