#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Functions.h>

#include "levin/kernels/block_sparse/attention_detail.h"

namespace levin::kernels::detail {
namespace {

using MaybeTensor = std::optional<Tensor>;

constexpr double kOfPadding = -10000;

/// Rows of the second dimension: [C, N, ...] to [C, index, ...].
Tensor picked(const Tensor& x, const Tensor& index) {
  if (!x.is_meta()) return x.index_select(1, index);
  return at::empty({x.size(0), index.numel(), x.size(2)}, x.options());  // torch has no such kernel for meta tensors
}

/// Sizes of an attention over blocks.
struct BlockSizes {
  BlockSizes(const Tensor& qkv, const Tensor& seen, int64_t gathered)
      : batch(qkv.size(0)),
        tokens(qkv.size(1)),
        heads(qkv.size(3)),
        width(qkv.size(4)),
        blocks(seen.size(1) + 2),
        size(tokens / blocks),
        slots(seen.size(2)),
        at_once(std::clamp<int64_t>(gathered / std::max<int64_t>(1, heads * (blocks - 2) * slots * size * width), 1,
                                    std::max<int64_t>(1, batch))),
        scale(1 / std::sqrt(static_cast<double>(width))) {}

  int64_t batch, tokens, heads, width, blocks, size, slots;
  /// Samples that are computed at once.
  int64_t at_once;
  double scale;
};

/// Queries [N, Q, D] that see the same keys and values [N, K, D], and what is added to their scores: [N or 1, 1, K].
struct SeenKeys {
  Tensor q, k, v, bias;

  /// [N, Q, K]; sums are in float. By _softmax, which autocast leaves alone.
  Tensor weights(double scale) const {
    return at::_softmax(at::baddbmm(bias, q, k.transpose(1, 2), 1, scale), -1, /*half_to_float=*/false);
  }
  Tensor mixed(double scale) const { return at::bmm(weights(scale), v); }
};

/// The samples of a chunk: blocks 1 to N - 2, each with the blocks it sees, and the ends, which see everything.
class Chunk {
 public:
  Chunk(const BlockSizes& sizes, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen)
      : sizes_(sizes), samples_(qkv.size(0)) {
    const auto options = qkv.options();
    const auto first = at::arange(sizes.heads, seen.options().dtype(at::kLong)).view({-1, 1, 1}) * sizes.blocks;
    place_ = (seen.clamp_min(0) + first).flatten();
    const auto q = heads(qkv, 0), k = heads(qkv, 1), v = heads(qkv, 2);
    const auto edges = samples_ * sizes.heads;
    auto of_ends = at::zeros({1, 1, sizes.tokens}, options);
    auto of_slots = at::zeros({1, sizes.heads, sizes.blocks - 2, sizes.slots, 1}, options)
                        .masked_fill((seen < 0).unsqueeze(-1), -std::numeric_limits<double>::infinity())
                        .expand({samples_, -1, -1, -1, sizes.size});
    if (mask) {
      const auto of_keys = mask->logical_not().to(qkv.scalar_type()) * kOfPadding;  // [C, T]
      of_ends = of_keys.unsqueeze(1).expand({-1, sizes.heads, -1}).reshape({edges, 1, sizes.tokens});
      of_slots = of_slots + picked(of_keys.view({samples_, sizes.blocks, sizes.size}), seen.clamp_min(0).flatten())
                                .view({samples_, sizes.heads, sizes.blocks - 2, sizes.slots, sizes.size});
    }
    ends = {ends_of(q), k.view({edges, sizes.tokens, -1}), v.view({edges, sizes.tokens, -1}), of_ends};
    middle = {middle_of(q), gathered(k), gathered(v),
              of_slots.reshape({edges * (sizes.blocks - 2), 1, sizes.slots * sizes.size})};
  }

  /// Part of [C, T, 3, H, D] as [C, H, T, D].
  static Tensor heads(const Tensor& qkv, int64_t part) { return qkv.select(2, part).transpose(1, 2).contiguous(); }

  /// Of [C, H, T, ...]: blocks 1 to N - 2 as [C * H * (N - 2), size, ...], the first and last as [C * H, 2 * size,
  /// ...].
  Tensor middle_of(const Tensor& x) const {
    return x.slice(2, sizes_.size, sizes_.tokens - sizes_.size).reshape({-1, sizes_.size, x.size(3)});
  }
  Tensor ends_of(const Tensor& x) const {
    const auto both = at::cat({x.slice(2, 0, sizes_.size), x.slice(2, sizes_.tokens - sizes_.size)}, 2);
    return both.view({-1, 2 * sizes_.size, x.size(3)});
  }
  /// The inverse of both: [C, H, T, ...].
  Tensor joined(const Tensor& of_middle, const Tensor& of_ends) const {
    const auto last = of_middle.size(-1);
    const auto inner = of_middle.view({samples_, sizes_.heads, -1, last});
    const auto outer = of_ends.view({samples_, sizes_.heads, 2 * sizes_.size, last});
    return at::cat({outer.slice(2, 0, sizes_.size), inner, outer.slice(2, sizes_.size)}, 2);
  }
  /// Gradients of gathered keys, each added to the block that it was gathered from: [C, H, T, D].
  Tensor scattered(const Tensor& grads, const Tensor& seen) const {
    // By a product: sums in one order on every device.
    const auto block = at::arange(sizes_.blocks, seen.options()).view({1, -1, 1});
    const auto chosen = (seen.flatten(1).unsqueeze(1) == block).to(grads.scalar_type());  // [H, N, (N - 2) * W]
    const auto by_slot = grads.view({samples_, sizes_.heads, (sizes_.blocks - 2) * sizes_.slots, -1});
    return at::matmul(chosen, by_slot).view({samples_, sizes_.heads, sizes_.tokens, sizes_.width});
  }

  SeenKeys middle, ends;

 private:
  Tensor gathered(const Tensor& x) const {
    return picked(x.view({samples_, sizes_.heads * sizes_.blocks, sizes_.size * sizes_.width}), place_)
        .view({-1, sizes_.slots * sizes_.size, sizes_.width});
  }

  BlockSizes sizes_;
  int64_t samples_;
  Tensor place_;
};

struct SeenGradients {
  Tensor q, k, v;
};

SeenGradients mixed_backward(const SeenKeys& keys, double scale, const Tensor& grad) {
  const auto weights = keys.weights(scale);
  auto dv = at::bmm(weights.transpose(1, 2), grad);
  const auto changes = at::bmm(grad, keys.v.transpose(1, 2));
  const auto of_scores = at::_softmax_backward_data(changes, weights, -1, weights.scalar_type()) * scale;
  return {at::bmm(of_scores, keys.k), at::bmm(of_scores.transpose(1, 2), keys.q), dv};
}

/// The samples from begin to end; [B, T, ...] with zeros for padding.
MaybeTensor rows_of(const MaybeTensor& mask, int64_t begin, int64_t end) {
  return mask ? MaybeTensor(mask->slice(0, begin, end)) : std::nullopt;
}
Tensor without_padding(const Tensor& x, const MaybeTensor& mask) {
  return mask ? x.masked_fill(mask->logical_not().unsqueeze(-1), 0) : x;
}

}  // namespace

Tensor block_sparse_by_aten(const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen, int64_t gathered) {
  const BlockSizes sizes(qkv, seen, gathered);
  std::vector<Tensor> outs;
  for (int64_t begin = 0; begin < sizes.batch; begin += sizes.at_once) {
    const auto end = std::min(sizes.batch, begin + sizes.at_once);
    const auto rows = rows_of(mask, begin, end);
    const Chunk chunk(sizes, qkv.slice(0, begin, end), rows, seen);
    const auto out = chunk.joined(chunk.middle.mixed(sizes.scale), chunk.ends.mixed(sizes.scale));
    outs.push_back(without_padding(out.transpose(1, 2).flatten(2), rows));
  }
  return outs.size() == 1 ? outs[0] : at::cat(outs, 0);
}

Tensor block_sparse_backward_by_aten(const Tensor& grad, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                     int64_t gathered) {
  const BlockSizes sizes(qkv, seen, gathered);
  auto result = at::empty(qkv.sizes(), qkv.options());
  for (int64_t begin = 0; begin < sizes.batch; begin += sizes.at_once) {
    const auto end = std::min(sizes.batch, begin + sizes.at_once);
    const auto rows = rows_of(mask, begin, end);
    const Chunk chunk(sizes, qkv.slice(0, begin, end), rows, seen);
    const auto own = without_padding(grad.slice(0, begin, end), rows);
    const auto g = own.view({end - begin, sizes.tokens, sizes.heads, -1}).transpose(1, 2);
    const auto inner = mixed_backward(chunk.middle, sizes.scale, chunk.middle_of(g));
    const auto outer = mixed_backward(chunk.ends, sizes.scale, chunk.ends_of(g));
    const auto to = result.slice(0, begin, end).permute({2, 0, 3, 1, 4});  // [3, C, H, T, D]
    to[0].copy_(chunk.joined(inner.q, outer.q));
    to[1].copy_(chunk.scattered(inner.k, seen) + outer.k.view(to[1].sizes()));
    to[2].copy_(chunk.scattered(inner.v, seen) + outer.v.view(to[2].sizes()));
  }
  return result;
}

}  // namespace levin::kernels::detail
