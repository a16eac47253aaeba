#include <algorithm>
#include <utility>

#include <ATen/Parallel.h>

#include "levin/kernels/played_device.h"
#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

/// The sizes of an input with the last ones replaced.
Sizes with_last(const Tensor& x, const Sizes& last) {
  auto sizes = x.sizes().vec();
  std::copy(last.begin(), last.end(), sizes.end() - static_cast<std::ptrdiff_t>(last.size()));
  return sizes;
}

/// Channels-last where the input is.
at::MemoryFormat format_of(const Tensor& x) {
  return x.dim() >= 4 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

int64_t one_of(const Sizes& values, size_t i, int64_t otherwise) {
  return values.empty() ? otherwise : values[std::min(i, values.size() - 1)];
}

// ---- padding: pairs, from the last dimension on

void pad(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto padding = call.ints("padding");
  auto sizes = x.sizes().vec();
  for (size_t i = 0; i < padding.size() / 2; ++i) sizes[sizes.size() - 1 - i] += padding[2 * i] + padding[2 * i + 1];
  call.result(std::move(sizes), x, format_of(x));
}
void pad_backward(ShapeCall& call) {
  const auto& x = call.tensor();
  call.result(x.sizes().vec(), x, format_of(x));
}

// ---- pooling

void adaptive_average(ShapeCall& call) {
  const auto& x = call.tensor();
  call.result(with_last(x, call.ints("output_size")), x, format_of(x));
}

void max_pool3d(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto kernel = call.ints("kernel_size"), stride = call.ints("stride"), padding = call.ints("padding"),
             dilation = call.ints("dilation");
  const bool up = call.flag("ceil_mode");
  Sizes last;
  for (size_t i = 0; i < 3; ++i) {
    const auto n = x.size(x.dim() - 3 + static_cast<int64_t>(i)), k = one_of(kernel, i, 1), s = one_of(stride, i, k),
               p = one_of(padding, i, 0), d = one_of(dilation, i, 1);
    auto size = (n + 2 * p - d * (k - 1) - 1 + (up ? s - 1 : 0)) / s + 1;
    if (up && (size - 1) * s >= n + p) --size;  // the last window must begin inside
    last.push_back(size);
  }
  call.result(with_last(x, last), x, format_of(x));
  call.result(with_last(x, last), at::kLong, format_of(x));
}

// Of channels-last images the CPU takes copies in that format.
void pool_backward(ShapeCall& call) {
  const auto& x = call.tensor();
  const bool copies = format_of(x) != at::MemoryFormat::Contiguous && kernels::played_device() == c10::kCPU;
  if (copies) call.scratch_like(x);
  if (copies && call.has("indices")) call.scratch_like(call.tensor("indices"));
  call.result(x.sizes().vec(), x, format_of(x));
}

/// The CPU interpolates small images channels-last, in copies.
void upsample(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto size = call.ints("output_size");
  const bool copies = kernels::played_device() == c10::kCPU && x.size(1) > 3 &&
                      format_of(x) == at::MemoryFormat::Contiguous &&
                      (at::get_num_threads() == 1 || size[0] + size[1] <= 128);
  if (copies) {
    call.scratch_like(x);
    call.scratch(with_last(x, size), x.scalar_type());
  }
  call.result(with_last(x, size), x, format_of(x));
}

void max_unpool(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto size = call.ints("output_size");
  call.result(with_last(x, size), x, size.size() == 2 ? format_of(x) : at::MemoryFormat::Contiguous);
}

// ---- sampling

/// [N, C, ...] at the points of [N, ..., 2 or 3].
void grid_sampler(ShapeCall& call) {
  const auto &x = call.tensor("input"), &grid = call.tensor("grid");
  Sizes sizes{x.size(0), x.size(1)};
  for (int64_t i = 1; i + 1 < grid.dim(); ++i) sizes.push_back(grid.size(i));
  call.result(std::move(sizes), x);
}
void grid_sampler_backward(ShapeCall& call) {
  const auto &x = call.tensor("input"), &grid = call.tensor("grid");
  call.wants(0) ? call.result(x.sizes().vec(), x) : call.none();
  call.result(grid.sizes().vec(), grid);
}

// ---- patches

Sizes maybe_batched(const Tensor& x, int64_t dim_with_batch, Sizes sizes) {
  if (x.dim() == dim_with_batch) sizes.insert(sizes.begin(), x.size(0));
  return sizes;
}

int64_t batch_of(const Tensor& x, int64_t dim_with_batch) {
  return x.dim() == dim_with_batch ? x.size(0) : 1;
}

// Results are made as large as the input first.

/// [N, C, H, W] to [N, C * kH * kW, L].
void im2col(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto kernel = call.ints("kernel_size"), dilation = call.ints("dilation"), padding = call.ints("padding"),
             stride = call.ints("stride");
  int64_t rows = x.size(-3), columns = 1;
  for (size_t i = 0; i < 2; ++i) {
    const auto k = one_of(kernel, i, 1);
    rows *= k;
    columns *=
        (x.size(static_cast<int64_t>(i) - 2) + 2 * one_of(padding, i, 0) - one_of(dilation, i, 1) * (k - 1) - 1) /
            one_of(stride, i, 1) +
        1;
  }
  call.result_in(std::max(x.numel(), batch_of(x, 4) * rows * columns), maybe_batched(x, 4, {rows, columns}),
                 x.scalar_type());
}
void col2im(ShapeCall& call) {
  const auto& x = call.tensor();
  const auto kernel = call.ints("kernel_size"), size = call.ints("output_size");
  const auto channels = x.size(-2) / (one_of(kernel, 0, 1) * one_of(kernel, 1, 1));
  const auto height = one_of(size, 0, 1), width = one_of(size, 1, 1);
  call.result_in(std::max(x.numel(), batch_of(x, 3) * channels * height * width),
                 maybe_batched(x, 3, {channels, height, width}), x.scalar_type());
}

// ---- norms

void batch_norm_legit(ShapeCall& call) {
  const auto& x = call.tensor("input");
  const bool training = !call.has("training") || call.flag("training");
  const auto dtype = at::isReducedFloatingType(x.scalar_type()) ? at::kFloat : x.scalar_type();
  call.like(x);
  for (int i = 0; i < 2; ++i) call.result({training ? x.size(1) : 0}, dtype);
}

void batch_norm_with_update(ShapeCall& call) {
  const auto& x = call.tensor("input");
  call.like(x);
  for (int i = 0; i < 2; ++i) call.result({x.size(1)}, x);
  call.result({0}, at::kByte);
}
void batch_norm_backward(ShapeCall& call) {
  const auto& x = call.tensor("input");
  call.wants(0) ? call.like(x) : call.none();
  for (size_t i = 1; i < 3; ++i) call.wants(i) ? call.result({x.size(1)}, call.tensor("weight")) : call.none();
}
void batch_norm_statistics(ShapeCall& call) {
  for (int i = 0; i < 2; ++i) call.result({call.tensor("input").size(1)}, call.tensor("input"));
}

}  // namespace

std::span<const ShapeRule> layer_shapes() {
  static const std::vector<ShapeRule> rules{
      {"reflection_pad2d", pad},
      {"reflection_pad2d_backward", pad_backward},
      {"replication_pad2d", pad, /*replaces=*/true},
      {"replication_pad3d", pad, /*replaces=*/true},
      {"replication_pad2d_backward", pad_backward},
      {"replication_pad3d_backward", pad_backward},
      {"_adaptive_avg_pool2d", adaptive_average},
      {"_adaptive_avg_pool2d_backward", pool_backward},
      {"max_pool2d_with_indices_backward", pool_backward, /*replaces=*/true},
      {"upsample_bilinear2d", upsample, /*replaces=*/true},
      {"upsample_nearest2d", upsample, /*replaces=*/true},
      {"_adaptive_avg_pool3d", adaptive_average},
      {"_adaptive_avg_pool3d_backward", pad_backward},
      {"adaptive_avg_pool2d", adaptive_average},
      {"adaptive_avg_pool3d", adaptive_average},
      {"adaptive_avg_pool3d_backward", writes_arguments},
      {"max_pool3d_with_indices", max_pool3d},
      {"max_pool3d_with_indices_backward", pad_backward},
      {"fractional_max_pool3d_backward", contiguous_likes({"self"})},
      {"max_unpool2d", max_unpool},
      {"max_unpool3d", max_unpool},
      {"grid_sampler_2d", grid_sampler},
      {"grid_sampler_3d", grid_sampler},
      {"grid_sampler_2d_backward", grid_sampler_backward},
      {"grid_sampler_3d_backward", grid_sampler_backward},
      {"im2col", im2col},
      {"col2im", col2im},
      {"channel_shuffle", contiguous_likes({"self"})},
      {"_native_batch_norm_legit", batch_norm_legit},
      {"_batch_norm_with_update", batch_norm_with_update},
      {"batch_norm_backward", batch_norm_backward},
      {"batch_norm_update_stats", batch_norm_statistics},
      {"_weight_norm_interface", contiguous_likes({"v", "g"})},
      {"_weight_norm_interface_backward", contiguous_likes({"saved_v", "saved_g"})},
  };
  return rules;
}

}  // namespace levin::detail
