#pragma once

#include <optional>
#include <tuple>

#include <c10/core/ScalarType.h>

#include "levin/kernels/tokens/prepend_token.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

using MaybeDtype = std::optional<at::ScalarType>;

/// As prepend_token, by the operators of levin whatever the device.
Tensor fused_prepend_token(const Tensor& patches, const Tensor& token, const Tensor& positions);

/// Gradients of patches [B, N, D], token [1, 1, D] and positions [1, N + 1, D], and sums of columns of the first [D];
/// undefined where nobody wants them.
using TokenGradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

/// What the backward of CUDA allocates for a gradient [B, N + 1, D]: the results in the dtypes that are wanted, and
/// partial sums [parts, N + 1, D], undefined where nothing is to be added up.
struct TokenBackwardTensors {
  TokenGradients gradients;
  Tensor partials;
};
TokenBackwardTensors allocate_token_backward(const Tensor& grad, MaybeDtype patches, MaybeDtype token,
                                             MaybeDtype positions, MaybeDtype sums, int processors);

/// The dtype of the result.
at::ScalarType token_dtype(const Tensor& patches, const Tensor& token, const Tensor& positions);

/// In prepend_token_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_prepend_token_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
