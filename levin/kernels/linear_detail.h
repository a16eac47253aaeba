#pragma once

#include <string_view>

#include "levin/kernels/linear.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// linear with its own backward, whatever the device. `computed` is the weight in the dtype of x; the bias may be
/// undefined.
Tensor fused_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed);

/// linear_activation, likewise.
Tensor fused_linear_activation(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& computed,
                               Activation kind);

/// As `weight`, `bias` and `computed` above.
struct LinearWeights {
  Tensor weight, bias, computed;
};

/// gelu_mlp, likewise.
Tensor fused_gelu_mlp(const Tensor& x, const LinearWeights& up, const LinearWeights& down);

/// LEVIN_MLP: "apart" (default) or "fused". Throws an Error for another word.
bool fuses_mlp(std::string_view word);
/// For tests: as if LEVIN_MLP said so.
void set_fuses_mlp(bool fuses);

/// In linear_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_linear_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
