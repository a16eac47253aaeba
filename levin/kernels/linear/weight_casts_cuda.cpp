#include <vector>

#include <ATen/ops/_foreach_copy.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/weight_casts_detail.h"
#include "levin/kernels/linear/weight_casts_launch.h"

namespace levin::kernels::detail {
namespace {

/// Whether the kernel takes them; `target` is what the others of the call are written to.
bool fits(const Tensor& to, const Tensor& from, const Tensor& target) {
  return from.scalar_type() == at::kFloat && at::isReducedFloatingType(to.scalar_type()) &&
         to.scalar_type() == target.scalar_type() && to.device() == target.device() && from.device() == to.device() &&
         from.is_non_overlapping_and_dense() && to.sizes() == from.sizes() && to.strides() == from.strides();
}

void cast_weights_cuda(at::TensorList to, at::TensorList from) {
  std::vector<CastEntry> entries;
  std::vector<Tensor> other_to, other_from;
  for (size_t i = 0; i < to.size(); ++i)
    if (!fits(to[i], from[i], to[0])) {
      other_to.push_back(to[i]);
      other_from.push_back(from[i]);
    } else if (from[i].numel() > 0) {
      entries.push_back({from[i].const_data_ptr<float>(), to[i].mutable_data_ptr(), from[i].numel()});
    }
  if (!other_to.empty()) at::_foreach_copy_(other_to, other_from);
  if (entries.empty()) return;
  const c10::cuda::CUDAGuard guard(to[0].device());
  CUstream_st* stream = c10::cuda::getCurrentCUDAStream().stream();
  const auto type = number_type("cast_weights", to[0].scalar_type());
  each_table<CastTable>(entries, kCastElements, [&](const CastTable& table) {
    C10_CUDA_CHECK(static_cast<cudaError_t>(launch_weight_casts(table, type, stream)));
  });
}

}  // namespace

void register_weight_casts_cuda(torch::Library& library) {
  library.impl("cast_weights_", cast_weights_cuda);
}

}  // namespace levin::kernels::detail
