#pragma once

#include "levin/kernels/embedding/embedding.h"

namespace torch {
class Library;
}

namespace levin::kernels::detail {

/// As embedding, with Levin's backward whatever the device.
Tensor fused_embedding(const Tensor& weight, const Tensor& ids, int64_t padding_idx);

/// As embedding_with_positions, likewise.
Tensor fused_embedding_with_positions(const Tensor& weight, const Tensor& ids, const Tensor& positions);

/// By ATen, on any device.
Tensor embedding_with_positions_by_aten(const Tensor& weight, const Tensor& ids, const Tensor& positions);

/// The operator of the backward: the gradient of a weight of `rows` rows, from that of the result. Not differentiable.
Tensor embedding_backward(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx);

/// The same, added to `out` [rows, D], which is contiguous and has the dtype of `grad`.
void add_embedding_backward(const Tensor& out, const Tensor& grad, const Tensor& ids, int64_t padding_idx);

/// Both by ATen's operator, on any device; the first can be differentiated.
Tensor embedding_backward_by_aten(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx);
void add_embedding_backward_by_aten(const Tensor& out, const Tensor& grad, const Tensor& ids, int64_t padding_idx);

/// In embedding_cuda.cpp, or no_cuda.cpp where there is no CUDA.
void register_embedding_cuda(torch::Library& library);

}  // namespace levin::kernels::detail
