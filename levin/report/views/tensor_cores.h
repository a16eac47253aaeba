#pragma once

#include <string_view>

namespace levin::report {

/// Whether a kernel with this name computes on tensor cores. `tb_compat`: by the list of the old TensorBoard plugin,
/// which does not know kernels of Ampere and later.
bool uses_tensor_cores(std::string_view kernel, bool tb_compat = false);

/// Whether a kernel on tensor cores reads float32 numbers as TF32: half as fast as 16 bits.
bool uses_tf32(std::string_view kernel);

/// Whether a kernel only changes the memory format of images for a convolution: cuDNN's, between NCHW and NHWC.
bool changes_memory_format(std::string_view kernel);

/// Whether an operator could: matrix products, convolutions, attention.
bool could_use_tensor_cores(std::string_view operator_name);

}  // namespace levin::report
