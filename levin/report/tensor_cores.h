#pragma once

#include <string_view>

namespace levin::report {

/// Whether a kernel with this name computes on tensor cores. `tb_compat`: by the list of the old TensorBoard plugin,
/// which does not know kernels of Ampere and later.
bool uses_tensor_cores(std::string_view kernel, bool tb_compat = false);

/// Whether an operator could: matrix products, convolutions, attention.
bool could_use_tensor_cores(std::string_view operator_name);

}  // namespace levin::report
