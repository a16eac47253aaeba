#include "levin/kernels/norm/batch_norm.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/dispatch.h"
#include "levin/kernels/fused_step/adam_detail.h"
#include "levin/kernels/norm/batch_norm_detail.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace detail {

BatchNormShape batch_norm_shape(const Tensor& x, bool vectors, int multiprocessors) {
  BatchNormShape shape;
  shape.channels = x.size(1);
  shape.rows = x.numel() / shape.channels;
  shape.type = number_type("batch_norm_act", x.scalar_type());
  shape.vectors = vectors && shape.channels % (16 / x.element_size()) == 0;
  shape.multiprocessors = multiprocessors;
  return shape;
}

BatchNormForward allocate_batch_norm(const Tensor& x, const BatchNormShape& shape, bool training, bool keeps_bits) {
  const auto sums = x.options().dtype(batch_norm_sums(x.scalar_type()));
  const auto plan = plan_batch_norm(shape, kStatisticsLoop);
  BatchNormForward made;
  made.y = at::empty_like(x);
  made.statistics = training ? at::empty({2, shape.channels}, sums) : at::empty({0}, sums);
  if (training) made.partial = at::empty({plan.parts, 2, shape.channels}, sums);
  const auto bytes = x.options().dtype(at::kByte);
  made.passed = keeps_bits ? at::empty({shape.rows, shape.channels / plan.width}, bytes) : at::empty({0}, bytes);
  return made;
}

Tensor passed_of_bits(const Tensor& passed, at::IntArrayRef sizes) {
  const auto width = sizes[1] / passed.size(1);
  const auto bits = passed.unsqueeze(-1).bitwise_right_shift(at::arange(width, passed.options())).bitwise_and(1);
  const auto rows = bits.to(at::kBool).view({passed.size(0), sizes[1]});
  return sizes.size() == 2 ? rows : rows.view({sizes[0], sizes[2], sizes[3], sizes[1]}).permute({0, 3, 1, 2});
}

BatchNormBackward allocate_batch_norm_backward(const Tensor& x, const std::optional<Tensor>& weight,
                                               const BatchNormShape& shape, bool training,
                                               const BatchNormWanted& wanted) {
  const auto sums = x.options().dtype(batch_norm_sums(x.scalar_type()));
  const auto of_weight = weight && weight->defined() ? x.options().dtype(weight->scalar_type()) : sums;
  BatchNormBackward result;
  if (wanted.residual) result.masked = at::empty_like(x);
  if (wanted.weight) result.grad_weight = at::empty({shape.channels}, of_weight);
  if (wanted.bias) result.grad_bias = at::empty({shape.channels}, of_weight);
  if (wanted.sums(training))
    result.partial = at::empty({plan_batch_norm(shape, kBackwardLoop).parts, 2, shape.channels}, sums);
  if (wanted.dx) result.dx = at::empty_like(x);
  return result;
}

}  // namespace detail

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using Four = std::tuple<Tensor, Tensor, Tensor, Tensor>;

// ---- the operators

constexpr auto kForward =
    "batch_norm_act(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
    "Tensor(b!)? running_var, Tensor(c!)? batches, bool training, float momentum, float eps, bool relu) -> (Tensor, "
    "Tensor, Tensor)";
constexpr auto kBackward =
    "batch_norm_act_backward(Tensor dy, Tensor x, Tensor? passed, Tensor? weight, Tensor? bias, Tensor? statistics, "
    "Tensor? running_mean, Tensor? running_var, float eps, bool relu, bool[4] wanted) -> (Tensor, Tensor, Tensor, "
    "Tensor)";

Three forward_on_meta(const Tensor& x, const MaybeTensor& residual, const MaybeTensor&, const MaybeTensor&,
                      const MaybeTensor&, const MaybeTensor&, const MaybeTensor&, bool training, double, double,
                      bool relu) {
  const auto made = detail::allocate_batch_norm(x, detail::batch_norm_shape(x, true, detail::kPlayedProcessors),
                                                training, relu && residual && residual->defined());
  return {made.y, made.statistics, made.passed};
}

Four backward_on_meta(const Tensor& grad, const Tensor& x, const MaybeTensor&, const MaybeTensor& weight,
                      const MaybeTensor&, const MaybeTensor& statistics, const MaybeTensor&, const MaybeTensor&, double,
                      bool, std::array<bool, 4> wanted) {
  const auto dy = grad.contiguous(x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  const auto made = detail::allocate_batch_norm_backward(
      x, weight, detail::batch_norm_shape(x, true, detail::kPlayedProcessors), statistics && statistics->defined(),
      {wanted[0], wanted[1], wanted[2], wanted[3]});
  return {made.dx, made.masked, made.grad_weight, made.grad_bias};
}

/// There is no kernel for the CPU: batch_norm_act is torch's own operators there.
struct BatchNormOps : detail::Operators {
  detail::Operator<decltype(forward_on_meta)> forward = add(kForward, forward_on_meta);
  detail::Operator<decltype(backward_on_meta)> backward = add(kBackward, backward_on_meta);

  BatchNormOps() { detail::register_batch_norm_act_cuda(cuda); }
};

// ---- autograd

/// What the operators want of a tensor that may be undefined.
MaybeTensor maybe(const Tensor& tensor) {
  return tensor.defined() ? MaybeTensor(tensor) : std::nullopt;
}

/// [C] as it must stand beside x.
Tensor along(const Tensor& values, const Tensor& x) {
  return x.dim() == 2 ? values : values.view({-1, 1, 1});
}

struct BatchNormAct : torch::autograd::Function<BatchNormAct> {
  /// What may be missing is optional: autograd takes no undefined tensor, and has no edge for it.
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const MaybeTensor& residual, const MaybeTensor& weight,
                        const MaybeTensor& bias, const MaybeTensor& running_mean, const MaybeTensor& running_var,
                        const MaybeTensor& batches, bool training, double momentum, double eps, bool relu) {
    // Running statistics change without a new version, as torch's do: an earlier forward may have saved them.
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, statistics, passed] = detail::operators<BatchNormOps>().forward.call(
        x, residual, weight, bias, running_mean, running_var, batches, training, momentum, eps, relu);
    const auto none = Tensor();
    // With a residual the mask of the ReLU is kept as bits. Without, it comes from x.
    ctx->save_for_backward({x, weight.value_or(none), bias.value_or(none), training ? statistics : none,
                            training ? none : running_mean.value_or(none), training ? none : running_var.value_or(none),
                            relu && residual ? passed : none});
    ctx->saved_data["residual"] = residual.has_value();
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["relu"] = relu;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2], &statistics = saved[3], &mean = saved[4],
               &var = saved[5], &passed = saved[6];
    const auto eps = ctx->saved_data["eps"].toDouble();
    const auto relu = ctx->saved_data["relu"].toBool();
    const std::array<bool, 4> has{true, ctx->saved_data["residual"].toBool(), weight.defined(), bias.defined()};
    std::array<bool, 4> wanted{};
    for (size_t i = 0, edge = 0; i < 4; ++i) wanted[i] = has[i] && ctx->needs_input_grad(edge++);
    variable_list result(11);
    if (at::GradMode::is_enabled()) {
      differentiable(grads[0], saved, eps, relu, wanted, result);
      return result;
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool passes_on = wanted[1] && !relu;  // the gradient of the residual is that of y itself
    if (passes_on) wanted[1] = false;
    if (wanted[0] || wanted[1] || wanted[2] || wanted[3])
      std::tie(result[0], result[1], result[2], result[3]) = detail::operators<BatchNormOps>().backward.call(
          grads[0], x, maybe(passed), maybe(weight), maybe(bias), maybe(statistics), maybe(mean), maybe(var), eps, relu,
          wanted);
    if (passes_on) result[1] = grads[0];
    return result;
  }

  /// The same gradients from operators that can be differentiated.
  static void differentiable(const Tensor& grad, const variable_list& saved, double eps, bool relu,
                             const std::array<bool, 4>& wanted, variable_list& result) {
    const auto &x = saved[0], &weight = saved[1], &bias = saved[2], &statistics = saved[3], &running_mean = saved[4],
               &running_var = saved[5], &passed = saved[6];
    const bool training = statistics.defined();
    const auto mean = training ? statistics.select(0, 0) : Tensor();
    const auto inverse_std = training ? statistics.select(0, 1) : Tensor();
    auto masked = grad, out = Tensor();
    if (relu && passed.defined()) {
      masked = grad.masked_fill(detail::passed_of_bits(passed, x.sizes()).logical_not(), 0);
    } else if (relu) {
      const at::NoGradGuard constant;
      const auto wide = x.to(detail::batch_norm_sums(x.scalar_type()));
      auto scale = training ? inverse_std : (running_var.to(wide.scalar_type()) + eps).rsqrt();
      if (weight.defined()) scale = scale * weight;
      out = (wide - along(training ? mean : running_mean, x)) * along(scale, x);
      if (bias.defined()) out = out + along(bias, x);
    }
    if (out.defined()) masked = at::threshold_backward(grad, out.to(x.scalar_type()), 0);
    if (wanted[1]) result[1] = masked;
    if (!wanted[0] && !wanted[2] && !wanted[3]) return;
    // Without training the statistics are those that run along, but CUDA's kernel wants others to be there.
    const auto none = training ? Tensor() : at::empty({0}, x.options().dtype(detail::batch_norm_sums(x.scalar_type())));
    std::tie(result[0], result[2], result[3]) = at::native_batch_norm_backward(
        masked, x, maybe(weight), maybe(running_mean), maybe(running_var), training ? maybe(mean) : maybe(none),
        training ? maybe(inverse_std) : maybe(none), training, eps, {wanted[0], wanted[2], wanted[3]});
  }
};

// ---- which one

/// What nobody else has may be overwritten.
Tensor composed(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                const Tensor& running_mean, const Tensor& running_var, bool training, double momentum, double eps,
                bool relu) {
  auto y = at::batch_norm(x, maybe(weight), maybe(bias), maybe(running_mean), maybe(running_var), training, momentum,
                          eps, at::globalContext().userEnabledCuDNN());
  if (residual.defined()) y.add_(residual);
  if (relu) y.relu_();
  return y;
}

bool is_channels_last(const Tensor& x) {
  return x.dim() == 2 ? x.is_contiguous() : x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

/// Whoever takes `aten::batch_norm` in a scope, as synchronized batch norm does, must get the call.
bool is_taken_by_a_scope(const Tensor& x) {
  return x.is_cuda() && c10::impl::tls_is_dispatch_key_included(levin::detail::kLowerKey);
}

bool fits_channels(const Tensor& numbers, const Tensor& x) {
  if (!numbers.defined()) return true;
  const auto dtype = numbers.scalar_type();
  return numbers.device() == x.device() && numbers.dim() == 1 && numbers.size(0) == x.size(1) &&
         numbers.is_contiguous() && (dtype == x.scalar_type() || dtype == detail::batch_norm_sums(x.scalar_type()));
}

bool can_fuse(const Tensor& x, const Tensor& residual, std::initializer_list<const Tensor*> of_channels,
              bool has_statistics, bool training) {
  if (kernel_device(x) != c10::kCUDA || !is_channels_last(x) || x.numel() == 0 || is_taken_by_a_scope(x)) return false;
  const auto dtype = x.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kHalf && dtype != at::kBFloat16) return false;
  if (!training && !has_statistics) return false;
  if (residual.defined() &&
      (residual.sizes() != x.sizes() || residual.scalar_type() != dtype || residual.device() != x.device()))
    return false;
  for (const auto* each : of_channels)
    if (!fits_channels(*each, x)) return false;
  return true;
}

}  // namespace

Tensor batch_norm_act(const Tensor& x, const Tensor& residual, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, bool training, double momentum, double eps,
                      bool relu, const Tensor& batches) {
  const bool has_statistics = running_mean.defined() && running_var.defined();
  // Weight and bias have one dtype: their gradients are written together.
  const bool alike = !weight.defined() || !bias.defined() || weight.scalar_type() == bias.scalar_type();
  const bool counts = !batches.defined() ||
                      (batches.device() == x.device() && batches.scalar_type() == at::kLong && batches.numel() == 1);
  if (!alike || !counts ||
      !can_fuse(x, residual, {&weight, &bias, &running_mean, &running_var}, has_statistics, training)) {
    if (training && batches.defined()) batches.add_(1);
    return composed(x, residual, weight, bias, running_mean, running_var, training, momentum, eps, relu);
  }
  const auto added =
      !residual.defined() || is_channels_last(residual)
          ? residual
          : residual.contiguous(x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  return BatchNormAct::apply(x, maybe(added), maybe(weight), maybe(bias), maybe(running_mean), maybe(running_var),
                             maybe(training ? batches : Tensor()), training, momentum, eps, relu);
}

}  // namespace levin::kernels
