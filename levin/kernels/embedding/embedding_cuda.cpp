#include <ATen/cuda/cub.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/embedding/embedding_detail.h"
#include "levin/kernels/embedding/embedding_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

bool has_embedding_kernel(const Tensor& grad, const Tensor& ids, int64_t rows) {
  const auto dtype = grad.scalar_type();
  constexpr int64_t kMost = int64_t{1} << 30;
  return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) &&
         (ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt) && ids.numel() > kFewIds &&
         ids.numel() <= kMost && rows > 0 && rows <= kMost && grad.size(-1) > 0 && grad.numel() <= kMost * 32;
}

/// Bits of the largest key, `rows`.
int64_t bits_of(int64_t rows) {
  int64_t bits = 1;
  while (rows >> bits != 0) ++bits;
  return bits;
}

/// By the kernels: `out` becomes the gradient, or grows by it.
void add_up(const Tensor& out, const Tensor& given, const Tensor& given_ids, int64_t padding_idx, bool add) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  const auto grad = given.contiguous(), ids = given_ids.contiguous();
  const auto count = ids.numel(), columns = grad.size(-1), rows = out.size(0);
  // Keys and places, as they come and sorted.
  const auto numbers = at::empty({4, count}, grad.options().dtype(at::kInt));
  int32_t* const first = numbers.mutable_data_ptr<int32_t>();
  const EmbeddingKeys keys{ids.const_data_ptr(),
                           ids.scalar_type() == at::kLong,
                           padding_idx,
                           static_cast<int32_t>(count),
                           static_cast<int32_t>(rows),
                           first,
                           first + count};
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_embedding_keys(keys, stream)));
  at::cuda::cub::radix_sort_pairs<int32_t, int32_t>(keys.keys, first + 2 * count, keys.places, first + 3 * count, count,
                                                    /*descending=*/false, /*begin_bit=*/0, bits_of(rows));
  const auto sums = at::empty({2, embedding_tiles(count), columns}, grad.options().dtype(at::kFloat));
  EmbeddingLaunch launch;
  launch.grad = grad.const_data_ptr(), launch.out = out.mutable_data_ptr(), launch.add = add;
  launch.keys = first + 2 * count, launch.places = first + 3 * count;
  launch.heads = sums.mutable_data_ptr<float>(), launch.tails = launch.heads + embedding_tiles(count) * columns;
  launch.type = number_type("embedding", grad.scalar_type());
  launch.count = static_cast<int32_t>(count), launch.rows = static_cast<int32_t>(rows), launch.columns = columns;
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_embedding_backward(launch, stream)));
}

Tensor embedding_backward_cuda(const Tensor& grad, const Tensor& ids, int64_t rows, int64_t padding_idx) {
  if (!has_embedding_kernel(grad, ids, rows)) return embedding_backward_by_aten(grad, ids, rows, padding_idx);
  auto out = at::empty({rows, grad.size(-1)}, grad.options());
  add_up(out, grad, ids, padding_idx, /*add=*/false);
  return out;
}

void add_embedding_backward_cuda(const Tensor& out, const Tensor& grad, const Tensor& ids, int64_t padding_idx) {
  if (has_embedding_kernel(grad, ids, out.size(0)))
    add_up(out, grad, ids, padding_idx, /*add=*/true);
  else
    add_embedding_backward_by_aten(out, grad, ids, padding_idx);
}

Tensor embedding_with_positions_cuda(const Tensor& weight, const Tensor& ids, const Tensor& positions) {
  const auto dtype = weight.scalar_type();
  constexpr int64_t kMost = int64_t{1} << 30;
  const bool has_kernel = (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) &&
                          positions.scalar_type() == dtype && ids.numel() > 0 && ids.numel() <= kMost;
  if (!has_kernel) return embedding_with_positions_by_aten(weight, ids, positions);
  const c10::cuda::CUDAGuard guard(weight.device());
  const auto table = weight.contiguous(), places = ids.contiguous(), added = positions.contiguous();
  auto out = at::empty({ids.size(0), ids.size(1), weight.size(1)}, weight.options());
  const EmbeddingSumLaunch launch{.weight = table.const_data_ptr(),
                                  .ids = places.const_data_ptr(),
                                  .positions = added.const_data_ptr(),
                                  .out = out.mutable_data_ptr(),
                                  .wide = places.scalar_type() == at::kLong,
                                  .type = number_type("embedding", dtype),
                                  .count = places.numel(),
                                  .length = ids.size(1),
                                  .rows = table.size(0),
                                  .columns = table.size(1)};
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_embedding_sum(launch, c10::cuda::getCurrentCUDAStream(weight.device().index()).stream())));
  return out;
}

}  // namespace

void register_embedding_cuda(torch::Library& library) {
  library.impl("embedding_backward", embedding_backward_cuda);
  library.impl("embedding_with_positions", embedding_with_positions_cuda);
  library.impl("add_embedding_backward", add_embedding_backward_cuda);
}

}  // namespace levin::kernels::detail
