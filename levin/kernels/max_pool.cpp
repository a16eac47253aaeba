#include "levin/kernels/max_pool.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/kernels/max_pool_detail.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace detail {
namespace {

int64_t windows_along(int64_t size, int64_t kernel, int64_t stride, int64_t padding) {
  return size + 2 * padding < kernel ? 0 : (size + 2 * padding - kernel) / stride + 1;
}

}  // namespace

std::vector<int64_t> flat_window(const MaxPoolWindow& w) {
  return {w.kernel[0], w.kernel[1], w.stride[0], w.stride[1], w.padding[0], w.padding[1]};
}

MaxPoolWindow window_of(at::IntArrayRef flat) {
  return {.kernel = {flat[0], flat[1]}, .stride = {flat[2], flat[3]}, .padding = {flat[4], flat[5]}};
}

Tensor max_pool_indices(const Tensor& chosen, int64_t image_width, const MaxPoolWindow& w) {
  const auto options = chosen.options().dtype(at::kLong);
  const auto which = chosen.to(at::kLong);
  const auto corner = [&](int64_t count, size_t axis) {
    return at::arange(count, options) * w.stride[axis] - w.padding[axis];
  };
  const auto row = which.div(w.kernel[1], "floor") + corner(chosen.size(2), 0).view({-1, 1});
  return row * image_width + which.remainder(w.kernel[1]) + corner(chosen.size(3), 1);
}

std::tuple<Tensor, Tensor> allocate_max_pool(const Tensor& x, const MaxPoolWindow& w) {
  const std::array<int64_t, 4> sizes{x.size(0), x.size(1),
                                     windows_along(x.size(2), w.kernel[0], w.stride[0], w.padding[0]),
                                     windows_along(x.size(3), w.kernel[1], w.stride[1], w.padding[1])};
  return {at::empty(sizes, x.options(), at::MemoryFormat::ChannelsLast),
          at::empty(sizes, x.options().dtype(at::kByte), at::MemoryFormat::ChannelsLast)};
}

Tensor allocate_max_pool_backward(const Tensor& dy, at::IntArrayRef sizes) {
  return at::empty(sizes, dy.options(), at::MemoryFormat::ChannelsLast);
}

}  // namespace detail

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::tuple<Tensor, Tensor> max_pool_on_meta(const Tensor& x, at::IntArrayRef window) {
  return detail::allocate_max_pool(x, detail::window_of(window));
}
Tensor max_pool_backward_on_meta(const Tensor& grad, const Tensor&, at::IntArrayRef sizes, at::IntArrayRef) {
  return detail::allocate_max_pool_backward(grad.contiguous(at::MemoryFormat::ChannelsLast), sizes);
}

/// There is no kernel for the CPU: max_pool2d is torch's own there.
struct MaxPoolOps : detail::Operators {
  detail::Operator<decltype(max_pool_on_meta)> forward =
      add("max_pool2d(Tensor x, int[] window) -> (Tensor, Tensor)", max_pool_on_meta);
  detail::Operator<decltype(max_pool_backward_on_meta)> backward = add(
      "max_pool2d_backward(Tensor dy, Tensor chosen, int[] sizes, int[] window) -> Tensor", max_pool_backward_on_meta);

  MaxPoolOps() { detail::register_max_pool_cuda(cuda); }
};

struct FusedMaxPool : torch::autograd::Function<FusedMaxPool> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const std::vector<int64_t>& window) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [y, chosen] = detail::operators<MaxPoolOps>().forward.call(x, window);
    ctx->save_for_backward({chosen});
    ctx->saved_data["sizes"] = x.sizes().vec();
    ctx->saved_data["window"] = window;
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto chosen = ctx->get_saved_variables()[0];
    const auto sizes = ctx->saved_data["sizes"].toIntVector(), window = ctx->saved_data["window"].toIntVector();
    if (at::GradMode::is_enabled()) {
      // The same gradient from an operator that can be differentiated. It asks x for nothing but its shape.
      const auto w = detail::window_of(window);
      const auto x = at::empty(sizes, grads[0].options(), at::MemoryFormat::ChannelsLast);
      return {at::max_pool2d_with_indices_backward(grads[0], x, w.kernel, w.stride, w.padding, w.dilation, false,
                                                   detail::max_pool_indices(chosen, sizes[3], w)),
              Tensor()};
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    return {detail::operators<MaxPoolOps>().backward.call(grads[0], chosen, sizes, window), Tensor()};
  }
};

/// Whatever torch would refuse goes to torch.
bool can_fuse(const Tensor& x, const MaxPoolWindow& w) {
  if (x.dim() != 4 || !detail::runs_fused(x) || !x.is_contiguous(at::MemoryFormat::ChannelsLast) || x.numel() == 0)
    return false;
  if (w.ceil_mode || w.dilation != std::array<int64_t, 2>{1, 1}) return false;
  for (size_t i = 0; i < 2; ++i) {
    const auto size = x.size(static_cast<int64_t>(i) + 2);
    if (w.kernel[i] < 1 || w.stride[i] < 1 || w.padding[i] < 0 || 2 * w.padding[i] > w.kernel[i]) return false;
    if (size + 2 * w.padding[i] < w.kernel[i] || size > std::numeric_limits<int>::max() / 2) return false;
    if (w.stride[i] > std::numeric_limits<int>::max() / 2) return false;
  }
  return w.kernel[0] <= 256 && w.kernel[1] <= 256 && w.kernel[0] * w.kernel[1] <= 256;
}

}  // namespace

Tensor max_pool2d(const Tensor& x, const MaxPoolWindow& window) {
  if (!can_fuse(x, window))
    return at::max_pool2d(x, window.kernel, window.stride, window.padding, window.dilation, window.ceil_mode);
  return FusedMaxPool::apply(x, detail::flat_window(window));
}

}  // namespace levin::kernels
