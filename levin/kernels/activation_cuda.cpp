#include <algorithm>

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/core/error.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/activation_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/linear/linear.h"

namespace levin::kernels::detail {
namespace {

ActivationKind kind_of(int64_t kind) {
  LEVIN_CHECK(is_activation(kind), "[activation] unknown kind ", kind);
  return static_cast<ActivationKind>(kind);
}

void run(ActivationPointers pointers, ActivationKind kind, bool backward, const Tensor& like) {
  if (like.numel() == 0) return;
  const c10::cuda::CUDAGuard guard(like.device());
  pointers.numel = like.numel();
  pointers.type = number_type("activation", like.scalar_type());
  const auto all = {pointers.first, pointers.second, pointers.grad, static_cast<const void*>(pointers.out),
                    static_cast<const void*>(pointers.second_out)};
  pointers.aligned = std::all_of(all.begin(), all.end(), is_pack_aligned);
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_activation(pointers, kind, backward, c10::cuda::getCurrentCUDAStream().stream())));
}

Tensor forward(const Tensor& given, int64_t kind) {
  const auto x = given.contiguous();
  auto out = at::empty_like(x);
  run({.first = x.const_data_ptr(), .out = out.mutable_data_ptr()}, kind_of(kind), false, x);
  return out;
}

Tensor backward(const Tensor& given_grad, const Tensor& given, int64_t kind) {
  const auto grad = given_grad.contiguous(), x = given.contiguous();
  auto out = at::empty_like(x);
  run({.first = x.const_data_ptr(), .grad = grad.const_data_ptr(), .out = out.mutable_data_ptr()}, kind_of(kind), true,
      x);
  return out;
}

std::tuple<Tensor, Tensor> backward_and_sums(const Tensor& given_grad, const Tensor& given, int64_t kind,
                                             at::ScalarType dtype) {
  const auto columns = given.size(-1);
  const bool narrow = given.scalar_type() == at::kHalf || given.scalar_type() == at::kBFloat16;
  const auto grad = given_grad.contiguous(), x = given.contiguous();
  const bool fits = narrow && x.numel() > 0 && columns % 8 == 0 && is_pack_aligned(x.const_data_ptr()) &&
                    is_pack_aligned(grad.const_data_ptr());
  if (!fits) {
    auto out = backward(grad, x, kind);
    auto sums = column_sum(out.view({-1, columns}), dtype);
    return {std::move(out), std::move(sums)};
  }
  const c10::cuda::CUDAGuard guard(x.device());
  auto out = at::empty_like(x), to = at::empty({columns}, x.options().dtype(dtype));
  ActivationSums sums;
  sums.rows = x.numel() / columns, sums.columns = columns;
  sums.parts = activation_sums_parts(sums.rows, columns, at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
  const auto partials = at::empty({sums.parts, columns}, x.options().dtype(at::kFloat));
  sums.x = x.const_data_ptr(), sums.grad = grad.const_data_ptr(), sums.out = out.mutable_data_ptr();
  sums.partials = partials.mutable_data_ptr<float>(), sums.to = to.mutable_data_ptr();
  sums.type = number_type("activation", x.scalar_type()), sums.to_type = number_type("activation", dtype);
  C10_CUDA_CHECK(static_cast<cudaError_t>(
      launch_activation_sums(sums, kind_of(kind), c10::cuda::getCurrentCUDAStream().stream())));
  return {std::move(out), std::move(to)};
}

Tensor gated_forward(const Tensor& given_gate, const Tensor& given_up) {
  const auto gate = given_gate.contiguous(), up = given_up.contiguous();
  auto out = at::empty_like(gate);
  run({.first = gate.const_data_ptr(), .second = up.const_data_ptr(), .out = out.mutable_data_ptr()},
      ActivationKind::kGatedSilu, false, gate);
  return out;
}

std::tuple<Tensor, Tensor> gated_backward(const Tensor& given_grad, const Tensor& given_gate, const Tensor& given_up) {
  const auto grad = given_grad.contiguous(), gate = given_gate.contiguous(), up = given_up.contiguous();
  auto grad_gate = at::empty_like(gate), grad_up = at::empty_like(up);
  run({.first = gate.const_data_ptr(),
       .second = up.const_data_ptr(),
       .grad = grad.const_data_ptr(),
       .out = grad_gate.mutable_data_ptr(),
       .second_out = grad_up.mutable_data_ptr()},
      ActivationKind::kGatedSilu, true, gate);
  return {grad_gate, grad_up};
}

}  // namespace

void register_activation_cuda(torch::Library& library) {
  library.impl("activation", forward);
  library.impl("activation_backward", backward);
  library.impl("activation_backward_and_sums", backward_and_sums);
  library.impl("gated_silu", gated_forward);
  library.impl("gated_silu_backward", gated_backward);
}

}  // namespace levin::kernels::detail
