#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/batch_norm_detail.h"

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
  const auto dtype = tensor->scalar_type();
  return {tensor->data_ptr(), dtype == at::kDouble  ? BatchNormType::kDouble
                              : dtype == at::kFloat ? BatchNormType::kFloat
                              : dtype == at::kHalf  ? BatchNormType::kHalf
                                                    : BatchNormType::kBFloat16};
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

std::tuple<Tensor, Tensor> batch_norm_act_on_cuda(const Tensor& x, const MaybeTensor& residual,
                                                  const MaybeTensor& weight, const MaybeTensor& bias,
                                                  const MaybeTensor& running_mean, const MaybeTensor& running_var,
                                                  bool training, double momentum, double eps, bool relu) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto* const stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
  // What the allocator gives stands at a vector.
  const auto shape = batch_norm_shape(x, stands_at_vector(x) && stands_at_vector(residual), multiprocessors());
  const auto made = allocate_batch_norm(x, shape, training);
  if (training)
    check(launch_batch_norm_statistics({.shape = shape,
                                        .x = x.const_data_ptr(),
                                        .partial = made.partial.mutable_data_ptr(),
                                        .statistics = made.statistics.mutable_data_ptr(),
                                        .running_mean = channel_numbers(running_mean),
                                        .running_var = channel_numbers(running_var),
                                        .momentum = momentum,
                                        .eps = eps},
                                       stream));
  check(launch_normalize_rows({.shape = shape,
                               .x = x.const_data_ptr(),
                               .residual = data_of(residual),
                               .y = made.y.mutable_data_ptr(),
                               .affine = affine_of(weight, bias, made.statistics, running_mean, running_var, eps),
                               .relu = relu},
                              stream));
  return {made.y, made.statistics};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm_act_backward_on_cuda(
    const Tensor& grad, const Tensor& x, const MaybeTensor& y, const MaybeTensor& weight, const MaybeTensor& bias,
    const MaybeTensor& statistics, const MaybeTensor& running_mean, const MaybeTensor& running_var, double eps,
    bool relu, std::array<bool, 4> asked) {
  const c10::cuda::CUDAGuard guard(x.device());
  auto* const stream = c10::cuda::getCurrentCUDAStream(x.device().index()).stream();
  const auto dy = grad.contiguous(x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  const bool training = statistics && statistics->defined();
  const BatchNormWanted wanted{asked[0], asked[1], asked[2], asked[3]};
  const auto shape =
      batch_norm_shape(x, stands_at_vector(x) && stands_at_vector(dy) && stands_at_vector(y), multiprocessors());
  const auto made = allocate_batch_norm_backward(x, weight, shape, training, wanted);
  const bool has_y = y && y->defined();
  BatchNormBackwardLaunch launch{.shape = shape,
                                 .affine = affine_of(weight, bias, statistics, running_mean, running_var, eps),
                                 .mask = !relu   ? ReluMask::kNone
                                         : has_y ? ReluMask::kOutput
                                                 : ReluMask::kInput,
                                 .dy = dy.const_data_ptr(),
                                 .x = x.const_data_ptr(),
                                 .y = data_of(y),
                                 .masked = wanted.residual ? made.masked.mutable_data_ptr() : nullptr,
                                 .grad_weight = channel_numbers(made.grad_weight),
                                 .grad_bias = channel_numbers(made.grad_bias)};
  if (wanted.sums(training)) {
    launch.partial = made.partial.mutable_data_ptr();
    launch.sums = made.sums.mutable_data_ptr();
    check(launch_batch_norm_backward_sums(launch, stream));
    if (wanted.residual) {
      // It is written: the second pass reads it in place of dy and y.
      launch.dy = launch.masked;
      launch.masked = nullptr;
      launch.mask = ReluMask::kNone;
    }
  }
  if (!training) launch.sums = nullptr;
  if (wanted.dx) {
    launch.dx = made.dx.mutable_data_ptr();
    check(launch_batch_norm_backward_input(launch, stream));
  }
  // Alone, the gradient of the residual is torch's own.
  if (!wanted.dx && !wanted.sums(training)) return {Tensor(), at::threshold_backward(dy, *y, 0), Tensor(), Tensor()};
  return {made.dx, made.masked, made.grad_weight, made.grad_bias};
}

}  // namespace

void register_batch_norm_act_cuda(torch::Library& library) {
  library.impl("batch_norm_act", batch_norm_act_on_cuda);
  library.impl("batch_norm_act_backward", batch_norm_act_backward_on_cuda);
}

}  // namespace levin::kernels::detail
