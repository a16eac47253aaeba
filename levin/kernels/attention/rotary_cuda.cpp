#include <limits>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/attention/rotary_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/linear.h"

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

std::tuple<Tensor, Tensor> pack_qkv_and_sums_cuda(const Tensor& q, const Tensor& k, const Tensor& v,
                                                  at::ScalarType dtype) {
  const auto size = q.size(2) * q.size(3), columns = 3 * size;
  const c10::cuda::CUDAGuard guard(q.device());
  if (!has_pack_kernel(q)) {
    auto packed = pack_qkv_by_aten(q, k, v);
    auto sums = column_sum(packed.view({q.size(0) * q.size(1), columns}), dtype);
    return {std::move(packed), std::move(sums)};
  }
  auto out = at::empty({q.size(0), q.size(1), 3, q.size(2), q.size(3)}, q.options());
  if (q.numel() == 0) return {std::move(out), at::zeros({columns}, q.options().dtype(dtype))};
  const Tensor parts[] = {q.contiguous(), k.contiguous(), v.contiguous()};
  auto sums = at::empty({columns}, q.options().dtype(dtype));
  PackSumsLaunch launch;
  for (int i = 0; i < 3; ++i) launch.parts[i] = parts[i].const_data_ptr();
  launch.out = out.mutable_data_ptr(), launch.sums = sums.mutable_data_ptr();
  launch.type = number_type("pack_qkv", q.scalar_type()), launch.sums_type = number_type("pack_qkv", dtype);
  launch.rows = q.size(0) * q.size(1), launch.size = size;
  launch.slices =
      pack_sums_slices(launch.rows, size, launch.type, at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
  launch.per_slice = (launch.rows + launch.slices - 1) / launch.slices;
  const auto partials = at::empty({launch.slices, columns}, q.options().dtype(at::kFloat));
  launch.partials = partials.mutable_data_ptr<float>();
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_pack_sums(launch, c10::cuda::getCurrentCUDAStream().stream())));
  return {std::move(out), std::move(sums)};
}

}  // namespace

void register_rotary_cuda(torch::Library& library) {
  library.impl("rotary_qk", rotary_cuda);
  library.impl("pack_qkv", pack_qkv_cuda);
  library.impl("pack_qkv_and_sums", pack_qkv_and_sums_cuda);
}

}  // namespace levin::kernels::detail
