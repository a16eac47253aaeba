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

/// Queries [N, Q, D] that see the same keys and values [N, K, D], and what is added to their scores.
struct SeenKeys {
  Tensor q, k, v, bias;

  Tensor scores(double scale) const {
    auto result = at::bmm(q, k.transpose(1, 2)).to(bias.scalar_type()) * scale;
    return result + bias;
  }
};

/// The samples of a chunk: blocks 1 to N - 2, each with the blocks it sees, and the ends, which see everything.
class Chunk {
 public:
  Chunk(const BlockSizes& sizes, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen)
      : sizes_(sizes), samples_(qkv.size(0)) {
    const auto wide = at::promote_types(qkv.scalar_type(), at::kFloat);
    const auto options = qkv.options().dtype(wide);
    const auto first = at::arange(sizes.heads, seen.options().dtype(at::kLong)).view({-1, 1, 1}) * sizes.blocks;
    place_ = (seen.clamp_min(0) + first).flatten();
    const auto q = heads(qkv, 0), k = heads(qkv, 1), v = heads(qkv, 2);
    const auto edges = samples_ * sizes.heads;
    auto of_ends = at::zeros({1, 1, sizes.tokens}, options);
    auto of_slots = at::zeros({1, sizes.heads, sizes.blocks - 2, sizes.slots, 1}, options)
                        .masked_fill((seen < 0).unsqueeze(-1), -std::numeric_limits<double>::infinity())
                        .expand({samples_, -1, -1, -1, sizes.size});
    if (mask) {
      const auto of_keys = mask->logical_not().to(wide) * kOfPadding;  // [C, T]
      of_ends = of_keys.unsqueeze(1).expand({-1, sizes.heads, -1}).reshape({edges, 1, sizes.tokens});
      of_slots = of_slots + of_keys.view({samples_, sizes.blocks, sizes.size})
                                .index_select(1, seen.clamp_min(0).flatten())
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
    return x.view({samples_, sizes_.heads * sizes_.blocks, sizes_.size * sizes_.width})
        .index_select(1, place_)
        .view({-1, sizes_.slots * sizes_.size, sizes_.width});
  }

  BlockSizes sizes_;
  int64_t samples_;
  Tensor place_;
};

BlockSparseResult mixed(const SeenKeys& keys, double scale) {
  auto scores = keys.scores(scale);
  const auto sums = scores.logsumexp(-1, /*keepdim=*/true);
  return {at::bmm((scores - sums).exp().to(keys.v.scalar_type()), keys.v), sums};
}

struct SeenGradients {
  Tensor q, k, v;
};

SeenGradients mixed_backward(const SeenKeys& keys, double scale, const Tensor& grad, const Tensor& sums) {
  const auto wide = sums.scalar_type(), narrow = keys.q.scalar_type();
  const auto weights = (keys.scores(scale) - sums).exp();
  auto dv = at::bmm(weights.to(narrow).transpose(1, 2), grad);
  const auto changes = at::bmm(grad, keys.v.transpose(1, 2)).to(wide);
  const auto products = (weights * changes).sum(-1, /*keepdim=*/true);
  const auto of_scores = (weights * (changes - products) * scale).to(narrow);
  return {at::bmm(of_scores, keys.k), at::bmm(of_scores.transpose(1, 2), keys.q), dv};
}

}  // namespace

BlockSparseResult block_sparse_by_aten(const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                       int64_t gathered) {
  const BlockSizes sizes(qkv, seen, gathered);
  std::vector<Tensor> outs, all_sums;
  for (int64_t begin = 0; begin < sizes.batch; begin += sizes.at_once) {
    const auto end = std::min(sizes.batch, begin + sizes.at_once);
    const auto rows = mask ? MaybeTensor(mask->slice(0, begin, end)) : std::nullopt;
    const Chunk chunk(sizes, qkv.slice(0, begin, end), rows, seen);
    const auto [inner, inner_sums] = mixed(chunk.middle, sizes.scale);
    const auto [outer, outer_sums] = mixed(chunk.ends, sizes.scale);
    auto out = chunk.joined(inner, outer).transpose(1, 2);
    auto sums = chunk.joined(inner_sums, outer_sums).squeeze(-1);
    if (rows) {
      const auto padding = rows->logical_not();
      out = out.masked_fill(padding.unsqueeze(-1).unsqueeze(-1), 0);
      sums = sums.masked_fill(padding.unsqueeze(1), std::numeric_limits<double>::infinity());
    }
    outs.push_back(out.flatten(2));
    all_sums.push_back(sums);
  }
  return {at::cat(outs, 0), at::cat(all_sums, 0)};
}

Tensor block_sparse_backward_by_aten(const Tensor& grad, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                     const Tensor& sums, int64_t gathered) {
  const BlockSizes sizes(qkv, seen, gathered);
  auto result = at::empty(qkv.sizes(), qkv.options());
  for (int64_t begin = 0; begin < sizes.batch; begin += sizes.at_once) {
    const auto end = std::min(sizes.batch, begin + sizes.at_once);
    const auto rows = mask ? MaybeTensor(mask->slice(0, begin, end)) : std::nullopt;
    const Chunk chunk(sizes, qkv.slice(0, begin, end), rows, seen);
    const auto g = grad.slice(0, begin, end).view({end - begin, sizes.tokens, sizes.heads, -1}).transpose(1, 2);
    const auto s = sums.slice(0, begin, end).unsqueeze(-1);
    auto inner = mixed_backward(chunk.middle, sizes.scale, chunk.middle_of(g), chunk.middle_of(s));
    auto outer = mixed_backward(chunk.ends, sizes.scale, chunk.ends_of(g), chunk.ends_of(s));
    const auto to = result.slice(0, begin, end).permute({2, 0, 3, 1, 4});  // [3, C, H, T, D]
    to[0].copy_(chunk.joined(inner.q, outer.q));
    to[1].copy_(chunk.scattered(inner.k, seen) + outer.k.view(to[1].sizes()));
    to[2].copy_(chunk.scattered(inner.v, seen) + outer.v.view(to[2].sizes()));
  }
  return result;
}

}  // namespace levin::kernels::detail
