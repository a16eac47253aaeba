#include "levin/nn/image_layers.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/kernels/max_pool.h"
#include "levin/kernels/norm/batch_norm.h"
#include "levin/kernels/played_device.h"

namespace levin::nn {
namespace {

constexpr auto kChannelsLast = at::MemoryFormat::ChannelsLast;

/// Dtype and layout change in one copy, forward and backward: the gradient comes as the weight lies.
struct ChannelsLastCast : torch::autograd::Function<ChannelsLastCast> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& weight, at::ScalarType dtype) {
    ctx->saved_data["sizes"] = weight.sizes().vec();
    ctx->saved_data["strides"] = weight.strides().vec();
    ctx->saved_data["dtype"] = weight.scalar_type();
    return at::empty(weight.sizes(), weight.options().dtype(dtype).requires_grad(false), kChannelsLast).copy_(weight);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    auto grad = at::empty_strided(ctx->saved_data["sizes"].toIntVector(), ctx->saved_data["strides"].toIntVector(),
                                  grads[0].options().dtype(ctx->saved_data["dtype"].toScalarType()));
    return {grad.copy_(grads[0]), Tensor()};
  }
};

bool casts_on_cuda(const Tensor& tensor) {
  return tensor.is_cuda() && tensor.scalar_type() == at::kFloat && at::autocast::is_autocast_enabled(at::kCUDA);
}

/// Parameters stay as they lie: a strategy may keep them as views of a flat buffer, and states of optimizers and files
/// follow them. cuDNN, told channels-last by the input, would convert the weight in forward and again in backward. So
/// the cast of autocast, whose result is kept for backward anyway, changes the layout too. It is not in autocast's
/// cache of weights; a convolution is called once in a forward. Without autocast the copy would be one more tensor to
/// keep, and cuDNN converts.
bool wants_other_layout(const Tensor& weight, const Tensor& x) {
  return casts_on_cuda(weight) && x.dim() == 4 && x.suggest_memory_format() == kChannelsLast &&
         !weight.is_contiguous(kChannelsLast);
}

/// oneDNN has to bring weights and their gradients into its order for channels-last images: small batches pay more for
/// that than they gain, and so do CPUs without AVX-512 (figures in docs/performance.md). It has no kernels for float64,
/// and 16 bits gain nothing.
bool is_faster_on_cpu(const Tensor& images, bool mostly_pointwise) {
  static const bool has_avx512 = at::get_cpu_capability() == "AVX512";
  if (!has_avx512 || kernels::kernel_device(images) != c10::kCPU || !at::globalContext().userEnabledMkldnn() ||
      images.scalar_type() != at::kFloat)
    return false;
  const auto pixels = images.size(2) * images.size(3), all = images.size(0) * pixels;
  return mostly_pointwise ? all >= 64 * 1024 : all >= 256 * 1024 && pixels >= 128 * 128;
}

}  // namespace

Tensor Conv2dImpl::forward(const Tensor& x) {
  if (!wants_other_layout(weight, x)) return _conv_forward(x, weight);
  return _conv_forward(x, ChannelsLastCast::apply(weight, at::autocast::get_autocast_dtype(at::kCUDA)));
}

Tensor BatchNorm2dImpl::forward(const Tensor& x, const Tensor& residual, bool relu) {
  _check_input_dim(x);
  const bool tracks = options.track_running_stats();
  double momentum = options.momentum().value_or(0);
  auto batches = is_training() && tracks ? num_batches_tracked : Tensor();
  if (batches.defined() && !options.momentum()) {
    momentum = 1.0 / batches.add_(1).item<double>();
    batches = Tensor();
  }
  const bool uses_batch = is_training() || !tracks;
  TORCH_CHECK(!uses_batch || x.size(0) * x.size(2) * x.size(3) != 1,
              "Expected more than 1 value per channel when training, got input size ", x.sizes());
  return kernels::batch_norm_act(x, residual, weight, bias, running_mean, running_var, uses_batch, momentum,
                                 options.eps(), relu, batches);
}

Tensor MaxPool2dImpl::forward(const Tensor& x) {
  const auto pair = [](const torch::ExpandingArray<2>& sizes) { return std::array<int64_t, 2>(*sizes); };
  return kernels::max_pool2d(x, {.kernel = pair(options.kernel_size()),
                                 .stride = pair(options.stride()),
                                 .padding = pair(options.padding()),
                                 .dilation = pair(options.dilation()),
                                 .ceil_mode = options.ceil_mode()});
}

Tensor channels_last_where_faster(const Tensor& images, bool mostly_pointwise) {
  if (images.dim() != 4) return images;
  if (kernels::kernel_device(images) != c10::kCUDA)
    return is_faster_on_cpu(images, mostly_pointwise) ? images.contiguous(kChannelsLast) : images;
  const auto dtype = casts_on_cuda(images) ? at::autocast::get_autocast_dtype(at::kCUDA) : images.scalar_type();
  if (dtype == images.scalar_type()) return images.contiguous(kChannelsLast);
  return images.to(images.options().dtype(dtype), /*non_blocking=*/false, /*copy=*/false, kChannelsLast);
}

}  // namespace levin::nn
