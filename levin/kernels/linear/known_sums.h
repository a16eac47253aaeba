#pragma once

#include <ATen/core/Tensor.h>

namespace levin::kernels::detail {

/// Whether kernels that make such a gradient add its columns up on the way, for the bias of the layer before them: the
/// fused ones do. LEVIN_BIAS_SUMS=0: none does; 1: those of the CPU, too.
bool adds_columns_up(const at::Tensor& grad);

/// `sums` are the sums of columns of `grad`. Remembered on this thread until others are, for the layer whose backward
/// comes next.
void remember_column_sums(const at::Tensor& grad, const at::Tensor& sums);

/// Those of `grad` in `dtype`, where it is the tensor that was remembered last, or a view of all of it, and has not
/// changed; else undefined.
at::Tensor take_column_sums(const at::Tensor& grad, at::ScalarType dtype);

}  // namespace levin::kernels::detail
