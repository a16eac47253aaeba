#pragma once

#include "levin/kernels/linear/weight_casts.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// Writes each tensor of `from` to the one of `to`, rounded as Tensor::copy_ does. The operator levin::cast_weights_:
/// on CUDA float weights to Half or BFloat16 of the same layout are one kernel for the whole list. No gradients.
void cast_weights(at::TensorList to, at::TensorList from);

/// In weight_casts_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_weight_casts_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
