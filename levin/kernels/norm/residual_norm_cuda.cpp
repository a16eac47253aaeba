#include <algorithm>
#include <mutex>

#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/norm/residual_norm_detail.h"
#include "levin/kernels/norm/residual_norm_launch.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels::detail {
namespace {

using MaybeTensor = std::optional<Tensor>;
constexpr const char* kName = "residual_norm";

bool given(const MaybeTensor& tensor) {
  return tensor && tensor->defined();
}
const void* pointer(const Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}
void* target(const Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr() : nullptr;
}
NumberType type_of(const Tensor& tensor) {
  return tensor.defined() ? number_type(kName, tensor.scalar_type()) : NumberType::kNone;
}
bool are_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(), is_pack_aligned);
}

/// Takes the next random numbers of the device, of a graph's own while one is captured.
void take_random(NormDropout& dropout) {
  auto* generator =
      at::get_generator_or_default<at::CUDAGeneratorImpl>(std::nullopt, at::cuda::detail::getDefaultCUDAGenerator());
  const std::lock_guard lock(generator->mutex_);
  const auto state = generator->philox_cuda_state(4);
  if (state.captured_) {
    dropout.seed_pointer = state.seed_.ptr;
    dropout.offset_pointer = state.offset_.ptr;
    dropout.offset = state.offset_intragraph_;
  } else {
    dropout.seed = state.seed_.val;
    dropout.offset = state.offset_.val;
  }
}

NormResults forward(const Tensor& given_stream, const MaybeTensor& given_branch, const Tensor& given_weight,
                    const MaybeTensor& given_bias, double eps, bool rms, double dropout, at::ScalarType output_dtype) {
  const c10::cuda::CUDAGuard guard(given_stream.device());
  const auto stream = given_stream.contiguous(), weight = given_weight.contiguous();
  Tensor branch, bias, sum, mean, random;
  if (given(given_bias)) bias = given_bias->contiguous();
  if (given(given_branch)) {
    branch = given_branch->contiguous();
    if (!norm_knows(type_of(stream), type_of(branch), number_type(kName, output_dtype)))
      branch = branch.to(stream.scalar_type());
    sum = at::empty_like(stream);
    if (dropout > 0) random = at::empty({2}, stream.options().dtype(at::kLong));
  }
  const auto columns = stream.size(-1), rows = columns > 0 ? stream.numel() / columns : 0;
  const auto statistics = stream.options().dtype(stream.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  auto output = at::empty(stream.sizes(), stream.options().dtype(output_dtype));
  auto rstd = at::empty({rows}, statistics);
  if (!rms) mean = at::empty({rows}, statistics);
  if (stream.numel() > 0) {
    NormForward norm;
    norm.stream = pointer(stream), norm.branch = pointer(branch);
    norm.weight = pointer(weight), norm.bias = pointer(bias);
    norm.output = target(output), norm.sum = target(sum), norm.mean = target(mean), norm.rstd = target(rstd);
    norm.rows = rows, norm.columns = columns;
    norm.stream_type = type_of(stream), norm.branch_type = type_of(branch), norm.output_type = type_of(output);
    norm.weight_type = type_of(weight), norm.bias_type = type_of(bias);
    norm.weight_aligned = are_aligned({norm.weight, norm.bias});
    norm.eps = eps, norm.rms = rms;
    if (random.defined()) {
      norm.dropout = norm_dropout(dropout, random.mutable_data_ptr<int64_t>());
      take_random(norm.dropout);
    }
    const auto plan = norm_forward_plan(rows, columns, norm.stream_type,
                                        are_aligned({norm.stream, norm.branch, norm.output, norm.sum}),
                                        at::cuda::getCurrentDeviceProperties()->multiProcessorCount);
    C10_CUDA_CHECK(
        static_cast<cudaError_t>(launch_norm_forward(norm, plan, c10::cuda::getCurrentCUDAStream().stream())));
  }
  return {output, sum, mean, rstd, random};
}

NormGradients backward(const MaybeTensor& given_output, const MaybeTensor& given_residual, const Tensor& given_stream,
                       const Tensor& given_weight, const MaybeTensor& mean, const Tensor& rstd,
                       const MaybeTensor& random, double, bool rms, double dropout,
                       std::optional<at::ScalarType> branch_dtype, bool for_weight,
                       std::optional<at::ScalarType> bias_dtype, std::optional<at::ScalarType> sums_dtype) {
  const c10::cuda::CUDAGuard guard(given_stream.device());
  const auto stream = given_stream.contiguous(), weight = given_weight.contiguous();
  Tensor grad_output, residual, grad_branch, grad_weight, grad_bias, sums, partials;
  if (given(given_output)) grad_output = given_output->contiguous();
  if (given(given_residual)) residual = given_residual->contiguous();
  const auto output_type = grad_output.defined() ? type_of(grad_output) : type_of(stream);
  auto grad_sum = at::empty_like(stream);
  auto written_dtype = branch_dtype;
  if (branch_dtype) {
    if (!norm_knows(type_of(stream), number_type(kName, *branch_dtype), output_type))
      written_dtype = stream.scalar_type();
    grad_branch = at::empty(stream.sizes(), stream.options().dtype(*written_dtype));
  }
  if (grad_output.defined() && for_weight) grad_weight = at::empty_like(weight);
  if (grad_output.defined() && bias_dtype) grad_bias = at::empty({weight.numel()}, weight.options().dtype(*bias_dtype));
  const auto columns = stream.size(-1), rows = columns > 0 ? stream.numel() / columns : 0;
  if (stream.numel() == 0) {
    if (grad_weight.defined()) grad_weight.zero_();
    if (grad_bias.defined()) grad_bias.zero_();
    return {grad_sum, grad_branch, grad_weight, grad_bias, sums};
  }
  NormBackward norm;
  norm.grad_output = pointer(grad_output), norm.grad_stream = pointer(residual), norm.stream = pointer(stream);
  norm.weight = pointer(weight), norm.mean = given(mean) ? pointer(*mean) : nullptr, norm.rstd = pointer(rstd);
  norm.grad_sum = target(grad_sum), norm.grad_branch = target(grad_branch);
  norm.grad_weight = target(grad_weight), norm.grad_bias = target(grad_bias);
  norm.rows = rows, norm.columns = columns;
  norm.stream_type = type_of(stream), norm.branch_type = type_of(grad_branch), norm.output_type = output_type;
  norm.weight_type = type_of(weight), norm.weight_aligned = are_aligned({norm.weight});
  norm.grad_weight_type = type_of(grad_weight), norm.grad_bias_type = type_of(grad_bias);
  norm.rms = rms;
  if (given(random)) norm.dropout = norm_dropout(dropout, random->mutable_data_ptr<int64_t>());
  const auto* device = at::cuda::getCurrentDeviceProperties();
  // Without a gradient of the output there is nothing to add up.
  const bool packs = grad_output.defined() &&
                     are_aligned({norm.grad_output, norm.grad_stream, norm.stream, norm.grad_sum, norm.grad_branch});
  const auto plan = norm_backward_plan(
      rows, columns, norm.stream_type, output_type, packs,
      {.processors = device->multiProcessorCount, .shared_memory = static_cast<int>(device->sharedMemPerBlockOptin)});
  if (sums_dtype && plan.packs) sums = at::empty({columns}, stream.options().dtype(*sums_dtype));
  norm.branch_sums = target(sums), norm.branch_sums_type = type_of(sums);
  if (grad_weight.defined() || grad_bias.defined() || sums.defined()) {
    partials = at::empty({sums.defined() ? 3 : 2, plan.blocks, columns}, rstd.options());
    norm.partials = target(partials);
  }
  C10_CUDA_CHECK(
      static_cast<cudaError_t>(launch_norm_backward(norm, plan, c10::cuda::getCurrentCUDAStream().stream())));
  if (branch_dtype && written_dtype != branch_dtype) grad_branch = grad_branch.to(*branch_dtype);
  return {grad_sum, grad_branch, grad_weight, grad_bias, sums};
}

}  // namespace

bool has_cuda_kernels() {
  return true;
}

bool is_hopper(c10::Device device) {
  const auto* properties = at::cuda::getDeviceProperties(device.index());
  return properties->major == 9 && properties->minor == 0;
}

void register_residual_norm_cuda(torch::Library& library) {
  library.impl("residual_norm", forward);
  library.impl("residual_norm_backward", backward);
}

}  // namespace levin::kernels::detail
