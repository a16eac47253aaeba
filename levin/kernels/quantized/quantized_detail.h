#pragma once

#include "levin/kernels/quantized/quantized_launch.h"
#include "levin/kernels/quantized/quantized_weight.h"

namespace levin::kernels::detail {

/// Pointers and sizes of a weight. The codes of nested scales are given on the CPU alone.
PackedMatrix packed_matrix(const QuantizedWeight& weight);
/// Errors for tensors that are no such weight: moved to another dtype, or to different devices.
void check_packed(const char* operation, const QuantizedWeight& weight);

/// What fits skinny_linear: few rows, and a dtype that it has.
bool runs_skinny(const Tensor& rows, const QuantizedWeight& weight);
/// The same of a weight of plain numbers, in 16 bits on CUDA: reading it once takes all the time there is.
bool runs_skinny(const Tensor& rows, const Tensor& weight);
/// What fits tile_linear: more rows than skinny_linear takes, up to kTileRows, on a Hopper.
bool runs_tiles(const Tensor& rows, const QuantizedWeight& weight);

Tensor dequantize_cpu(const QuantizedWeight& weight, at::ScalarType dtype);
/// x [m, columns], m up to kSkinnyRows; bias may be undefined.
Tensor skinny_linear_cpu(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias);
/// a [m, k] times the transposed b [n, k], both int8, to int32 [m, n].
Tensor int8_product_cpu(const Tensor& a, const Tensor& b);

/// In quantized_cuda.cpp: packed_matrix of a weight on a GPU, with all that the kernels need.
PackedMatrix matrix_on_device(const QuantizedWeight& weight);

/// In quantized_cuda.cpp, or no_cuda.cpp where there is no CUDA.
Tensor dequantize_cuda(const QuantizedWeight& weight, at::ScalarType dtype);
Tensor skinny_linear_cuda(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias);
Tensor skinny_linear_cuda(const Tensor& x, const Tensor& weight, const Tensor& bias);
Tensor tile_linear_cuda(const Tensor& x, const QuantizedWeight& weight, const Tensor& bias);

}  // namespace levin::kernels::detail
