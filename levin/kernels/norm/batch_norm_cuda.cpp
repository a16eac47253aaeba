#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/norm/batch_norm_detail.h"

namespace levin::kernels::detail {
namespace {

using MaybeTensor = std::optional<Tensor>;

const void* data_of(const MaybeTensor& tensor) {
  return tensor && tensor->defined() ? tensor->const_data_ptr() : nullptr;
}

bool stands_at_vector(const MaybeTensor& tensor) {
  return reinterpret_cast<uintptr_t>(data_of(tensor)) % 16 == 0;
}

/// The statistics of a running layer are written; everything else is only read.
ChannelNumbers channel_numbers(const MaybeTensor& tensor) {
  if (!tensor || !tensor->defined()) return {};
  return {tensor->data_ptr(), number_type("batch_norm_act", tensor->scalar_type())};
}

int multiprocessors() {
  return at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
}

BatchNormAffine affine_of(const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& statistics,
                          const MaybeTensor& running_mean, const MaybeTensor& running_var, double eps) {
  const bool of_batch = statistics && statistics->defined() && statistics->numel() > 0;
  return {.mean = of_batch ? channel_numbers(statistics->select(0, 0)) : channel_numbers(running_mean),
          .spread = of_batch ? channel_numbers(statistics->select(0, 1)) : channel_numbers(running_var),
          .weight = channel_numbers(weight),
          .bias = channel_numbers(bias),
          .spread_is_variance = !of_batch,
          .eps = eps};
}

void check(int error) {
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_act_on_cuda(const Tensor& x, const MaybeTensor& residual,
                                                          const MaybeTensor& weight, const MaybeTensor& bias,
                                                          const MaybeTensor& running_mean,
                                                          const MaybeTensor& running_var, const MaybeTensor& batches,
                                                          bool training, double momentum, double eps, bool relu) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto* const stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
  // What the allocator gives stands at a vector.
  const auto shape = batch_norm_shape(x, stands_at_vector(x) && stands_at_vector(residual), multiprocessors());
  const bool keeps_bits = relu && residual && residual->defined();
  const auto made = allocate_batch_norm(x, shape, training, keeps_bits);
  // In training the kernel makes the statistics itself, and updates those that run along.
  check(launch_batch_norm({.shape = shape,
                           .x = x.const_data_ptr(),
                           .residual = data_of(residual),
                           .y = made.y.mutable_data_ptr(),
                           .affine = affine_of(weight, bias, std::nullopt, running_mean, running_var, eps),
                           .momentum = momentum,
                           .relu = relu,
                           .partial = training ? made.partial.mutable_data_ptr() : nullptr,
                           .statistics = training ? made.statistics.mutable_data_ptr() : nullptr,
                           .batches = training && batches ? batches->mutable_data_ptr<int64_t>() : nullptr,
                           .passed = keeps_bits ? made.passed.mutable_data_ptr<uint8_t>() : nullptr},
                          stream));
  return {made.y, made.statistics, made.passed};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_act_backward_on_cuda(
    const Tensor& grad, const Tensor& x, const MaybeTensor& passed, const MaybeTensor& weight, const MaybeTensor& bias,
    const MaybeTensor& statistics, const MaybeTensor& running_mean, const MaybeTensor& running_var, double eps,
    bool relu, std::array<bool, 4> asked) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto* const stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
  auto dy = grad.contiguous(x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  const bool training = statistics && statistics->defined();
  const BatchNormWanted wanted{asked[0], asked[1], asked[2], asked[3]};
  const bool has_bits = passed && passed->defined();
  // Alone, the gradient of the residual is torch's own.
  if (!wanted.dx && !wanted.sums(training))
    return {Tensor(), dy.masked_fill(passed_of_bits(*passed, x.sizes()).logical_not(), 0), Tensor(), Tensor()};
  // Threads have as many channels as in forward, where bits are theirs.
  const bool whole = has_bits ? passed->size(1) < x.size(1) : stands_at_vector(x) && stands_at_vector(dy);
  if (has_bits && whole && !stands_at_vector(dy)) dy = dy.clone();
  const auto shape = batch_norm_shape(x, whole, multiprocessors());
  const auto made = allocate_batch_norm_backward(x, weight, shape, training, wanted);
  check(launch_batch_norm_backward({.shape = shape,
                                    .affine = affine_of(weight, bias, statistics, running_mean, running_var, eps),
                                    .mask = !relu      ? ReluMask::kNone
                                            : has_bits ? ReluMask::kBits
                                                       : ReluMask::kInput,
                                    .dy = dy.const_data_ptr(),
                                    .x = x.const_data_ptr(),
                                    .passed = static_cast<const uint8_t*>(data_of(passed)),
                                    .masked = wanted.residual ? made.masked.mutable_data_ptr() : nullptr,
                                    .dx = wanted.dx ? made.dx.mutable_data_ptr() : nullptr,
                                    .partial = wanted.sums(training) ? made.partial.mutable_data_ptr() : nullptr,
                                    .of_batch = training,
                                    .grad_weight = channel_numbers(made.grad_weight),
                                    .grad_bias = channel_numbers(made.grad_bias)},
                                   stream));
  return {made.dx, made.masked, made.grad_weight, made.grad_bias};
}

}  // namespace

void register_batch_norm_act_cuda(torch::Library& library) {
  library.impl("batch_norm_act", batch_norm_act_on_cuda);
  library.impl("batch_norm_act_backward", batch_norm_act_backward_on_cuda);
}

}  // namespace levin::kernels::detail
