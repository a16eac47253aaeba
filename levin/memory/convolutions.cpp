#include "levin/memory/convolutions.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "levin/kernels/played_device.h"

namespace levin::detail {

using at::Tensor;

namespace {

using MaybeTensor = std::optional<Tensor>;
using SymInts = c10::SymIntArrayRef;
using Sizes = std::vector<int64_t>;

Sizes ints(SymInts list) {
  Sizes values;
  for (const auto& each : list) values.push_back(each.expect_int());
  return values;
}

/// A convolution, of [N, C, ...] or [C, ...] by a weight [O, C / groups, ...].
struct Convolution {
  const Tensor& x;
  const Tensor& weight;
  Sizes stride, padding, dilation;
  bool transposed, has_bias;
  int64_t groups;

  bool is_channels_last() const {
    return x.dim() == 4 && (x.suggest_memory_format() == at::MemoryFormat::ChannelsLast ||
                            weight.suggest_memory_format() == at::MemoryFormat::ChannelsLast);
  }
  bool on_cpu() const { return kernels::played_device() == c10::kCPU; }
  /// Torch's choice between oneDNN and kernels of its own.
  bool in_onednn() const {
    if (!on_cpu() || !at::globalContext().userEnabledMkldnn() || x.scalar_type() != at::kFloat) return false;
    const auto above = [](const Sizes& values, int64_t n) {
      return std::ranges::any_of(values, [=](auto v) { return v > n; });
    };
    const bool is_point = std::ranges::all_of(weight.sizes().slice(2), [](auto k) { return k == 1; });
    const bool is_large = weight.dim() >= 4 && weight.size(-1) > 3 && weight.size(-2) > 3;
    return (above(stride, 1) || above(dilation, 1) || x.size(0) >= 16 || !is_point || at::get_num_threads() > 1) &&
           (groups > 1 || is_large || x.size(0) > 1 || x.numel() > 20480);
  }
};

Tensor made(const Sizes& sizes, const Tensor& as) {
  return at::empty(sizes, as.options());
}
int64_t whole_blocks(int64_t channels) {
  return (channels + 15) / 16 * 16;
}
/// In oneDNN's order: channels in blocks of 16.
Tensor blocked(const Tensor& as, Sizes sizes) {
  sizes[1] = whole_blocks(sizes[1]);
  return made(sizes, as);
}
Tensor blocked(const Tensor& tensor) {
  return blocked(tensor, tensor.sizes().vec());
}
bool is_depthwise(const Convolution& of) {
  return of.groups > 1 && of.groups == of.x.size(1);
}
Tensor blocked_weight(const Convolution& of) {
  auto sizes = of.weight.sizes().vec();
  if (of.groups == 1)
    for (auto* channels : {&sizes[0], &sizes[1]}) *channels = whole_blocks(*channels);
  return made(sizes, of.x);
}

/// What a call takes besides its results.
using Scratch = std::vector<Tensor>;

/// Torch's own kernels: columns of all images, which a kernel of one pixel does not need.
void add_columns(Scratch& scratch, const Convolution& of, const Tensor& out) {
  const auto kernel = c10::multiply_integers(of.weight.sizes().slice(2));
  if (!of.on_cpu() || kernel == 1 || of.groups > 1) return;
  const auto& wide = of.transposed ? out : of.x;
  const auto& points = of.transposed ? of.x : out;
  scratch.push_back(made({wide.size(0), wide.size(1) * kernel, c10::multiply_integers(points.sizes().slice(2))}, of.x));
}

Tensor convolve(const Convolution& of, Sizes sizes) {
  if (of.on_cpu() && of.is_channels_last()) {
    Scratch scratch;
    if (of.in_onednn() && !of.weight.is_contiguous(at::MemoryFormat::ChannelsLast))
      scratch.push_back(at::empty_like(of.weight));
    return at::empty(sizes, of.x.options(), at::MemoryFormat::ChannelsLast);
  }
  if (!of.in_onednn()) {
    auto out =
        of.is_channels_last() ? at::empty(sizes, of.x.options(), at::MemoryFormat::ChannelsLast) : made(sizes, of.x);
    Scratch scratch;
    add_columns(scratch, of, out);
    return out;
  }
  const auto result = blocked(of.x, sizes);
  {
    Scratch scratch{at::empty_like(of.weight),
                    of.transposed || is_depthwise(of) ? blocked(of.x) : at::empty_like(of.x)};
    if (of.transposed && of.has_bias) scratch.push_back(blocked(of.x, sizes));
  }
  return made(sizes, of.x);
}

Tensor convolution(const Tensor& x, const Tensor& weight, const MaybeTensor& bias, SymInts stride, SymInts padding,
                   SymInts dilation, bool transposed, SymInts output_padding, c10::SymInt groups) {
  const Convolution of{
      x, weight, ints(stride), ints(padding), ints(dilation), transposed, bias && bias->defined(), groups.expect_int()};
  const auto extra = ints(output_padding);
  Sizes sizes{x.size(0), transposed ? weight.size(1) * of.groups : weight.size(0)};
  for (size_t i = 0; i + 2 < static_cast<size_t>(x.dim()); ++i) {
    const auto at = [i](const Sizes& values) { return values[values.size() == 1 ? 0 : i]; };
    const auto n = x.size(static_cast<int64_t>(i) + 2), s = at(of.stride), p = at(of.padding),
               k = at(of.dilation) * (weight.size(static_cast<int64_t>(i) + 2) - 1) + 1;
    sizes.push_back(transposed ? (n - 1) * s - 2 * p + k + at(extra) : (n + 2 * p - k) / s + 1);
  }
  return convolve(of, std::move(sizes));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                                        SymInts stride, SymInts padding, SymInts dilation,
                                                        bool transposed, SymInts, c10::SymInt groups,
                                                        std::array<bool, 3> mask) {
  const Convolution of{x, weight, ints(stride), ints(padding), ints(dilation), transposed, false, groups.expect_int()};
  const auto of_bias = mask[2] ? made({grad.size(1)}, grad) : Tensor();
  if (of.in_onednn() && !of.is_channels_last()) {
    // The gradient of the input, then that of the weight, each in oneDNN's order first.
    const bool is_strided = std::ranges::any_of(of.stride, [](auto s) { return s > 1; });
    Tensor of_x, of_weight;
    if (mask[0]) {
      const auto result = of.transposed || (is_strided && !is_depthwise(of)) ? at::empty_like(x) : blocked(x);
      Scratch{blocked(grad), blocked_weight(of)};
      of_x = at::empty_like(x);
    }
    if (mask[1]) {
      constexpr int64_t kColors = 3;  // are read as they are
      Scratch scratch{blocked(grad)};
      if (x.size(1) > kColors) scratch.push_back(is_depthwise(of) ? blocked(x) : at::empty_like(x));
      const auto result = blocked_weight(of);
      scratch.clear();
      of_weight = at::empty_like(weight);
    }
    return {of_x, of_weight, of_bias};
  }
  Scratch scratch;
  auto of_x = mask[0] ? at::empty_like(x) : Tensor();
  if (of.in_onednn()) {
    // The weight in its format; its gradient in oneDNN's order and in torch's.
    const int copies = (weight.is_contiguous(at::MemoryFormat::ChannelsLast) ? 0 : 1) + (mask[1] ? 2 : 0);
    for (int i = 0; i < copies; ++i) scratch.push_back(at::empty_like(weight));
  } else {
    add_columns(scratch, of, grad);
  }
  return {of_x, mask[1] ? at::empty_like(weight) : Tensor(), of_bias};
}

}  // namespace

void register_convolutions(torch::Library& meta) {
  meta.impl("convolution_overrideable", convolution);
  meta.impl("convolution_backward_overrideable", convolution_backward);
}

}  // namespace levin::detail
