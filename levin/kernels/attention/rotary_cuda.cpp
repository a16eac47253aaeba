#include <limits>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/attention/rotary_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

bool has_pack_kernel(const Tensor& x) {
  const auto dtype = x.scalar_type();
  return dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16;
}

void run_pack_heads(PackHeadsLaunch launch, const Tensor& out) {
  launch.type = number_type("rotary_qk", out.scalar_type());
  launch.out = out.mutable_data_ptr();
  const c10::cuda::CUDAGuard guard(out.device());
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_pack_heads(launch, c10::cuda::getCurrentCUDAStream(out.device().index()).stream())));
}

Tensor rotary_cuda(const Tensor& given, const Tensor& angles, bool inverse) {
  if (!has_pack_kernel(given)) return rotary_by_aten(given, angles, inverse);
  const auto qkv = given.contiguous(), turns = angles.to(at::kFloat).contiguous();
  auto out = at::empty(qkv.sizes(), qkv.options());
  if (qkv.numel() == 0) return out;
  const auto heads = qkv.size(3), size = qkv.size(4);
  PackHeadsLaunch launch{.rows = qkv.size(0) * qkv.size(1),
                         .heads = static_cast<int32_t>(heads),
                         .size = static_cast<int32_t>(size),
                         .angles = turns.const_data_ptr<float>(),
                         .length = static_cast<int32_t>(qkv.size(1)),
                         .inverse = inverse};
  for (int i = 0; i < 3; ++i) {
    launch.parts[i] = static_cast<const char*>(qkv.const_data_ptr()) + i * heads * size * qkv.element_size();
    launch.strides[i] = 3 * heads * size;
  }
  run_pack_heads(launch, out);
  return out;
}

Tensor pack_qkv_cuda(const Tensor& q, const Tensor& k, const Tensor& v) {
  const auto row = q.size(2) * q.size(3);
  if (!has_pack_kernel(q) || row % 2 != 0 || row > std::numeric_limits<int32_t>::max())
    return pack_qkv_by_aten(q, k, v);
  auto out = at::empty({q.size(0), q.size(1), 3, q.size(2), q.size(3)}, q.options());
  if (q.numel() == 0) return out;
  const Tensor parts[] = {q.contiguous(), k.contiguous(), v.contiguous()};
  PackHeadsLaunch launch{.rows = q.size(0) * q.size(1), .heads = 1, .size = static_cast<int32_t>(row)};
  for (int i = 0; i < 3; ++i) {
    launch.parts[i] = parts[i].const_data_ptr();
    launch.strides[i] = row;
  }
  run_pack_heads(launch, out);
  return out;
}

}  // namespace

void register_rotary_cuda(torch::Library& library) {
  library.impl("rotary_qk", rotary_cuda);
  library.impl("pack_qkv", pack_qkv_cuda);
}

}  // namespace levin::kernels::detail
