#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "levin/kernels/decode/cpu_loops.h"

/// Layers of a few rows on the CPU without gradients, as in a decode step: what they cost is to read the weights.
namespace levin::kernels::detail {

using at::Tensor;

/// More rows are left to the products of torch.
inline constexpr int64_t kFewRows = 4;

/// Whether x [..., columns] has few rows, in a dtype of the loops, on the CPU, where no gradient and no autocast is
/// asked for.
bool has_few_rows(const Tensor& x);
LoopNumber loop_number(at::ScalarType dtype);
/// Calls body(begin, end) with rows of a matrix in fours, on all threads.
void for_matrix_rows(int64_t rows, int64_t columns, c10::function_ref<void(int64_t, int64_t)> body);

bool runs_few_rows_linear(const Tensor& x, const Tensor& weight, const Tensor& bias);
/// x times the transposed weight plus bias (may be undefined): at::linear, but for the order of the sums.
Tensor few_rows_linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

/// The norm of rows h, with weight and bias (may be undefined) of any dtype.
Tensor few_rows_norm(const Tensor& h, const Tensor& weight, const Tensor& bias, double eps, bool rms);

}  // namespace levin::kernels::detail
