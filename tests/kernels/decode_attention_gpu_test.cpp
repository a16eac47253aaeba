// One token against its cache by the kernels of decoding, against the same in double.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/decode/decode.h"
#include "levin/kernels/linear/constant_weights.h"
#include "levin/kernels/linear/linear.h"
#include "levin/testing/gpu.h"

namespace levin::decode_attention_gpu_tests {
namespace {

using at::Tensor;
using kernels::DecodeArguments;

class DecodeAttentionGpu : public levin::testing::GpuTest {};

struct Case {
  at::ScalarType dtype = at::kBFloat16;
  int64_t heads = 8, kv_heads = 2, width = 128, turned = 128;  // dimensions of a head that are turned
  std::vector<int64_t> positions{0, 5, 70};
  int64_t seen = 256, window = 0;
  double softcap = 0;
  bool alibi = false, paged = false;
};

Tensor turned(const Tensor& x, const Tensor& angles, int64_t position) {  // [H, D]
  const auto half = angles.size(2);
  const auto c = angles[0][position].to(at::kDouble), s = angles[1][position].to(at::kDouble);
  const auto a = x.slice(1, 0, half), b = x.slice(1, half, 2 * half);
  return at::cat({a * c - b * s, b * c + a * s, x.slice(1, 2 * half)}, 1);
}

/// Row i in double, with a cache whose token is not there yet.
Tensor expected_row(const Case& c, const DecodeArguments& args, int64_t i) {
  const auto position = c.positions[static_cast<size_t>(i)];
  const auto wide = [&](const Tensor& x) { return x[i][0].to(at::kDouble); };
  auto q = wide(args.q), k = wide(args.k);
  if (args.angles.defined()) q = turned(q, args.angles, position), k = turned(k, args.angles, position);
  q = q.to(c.dtype).to(at::kDouble), k = k.to(c.dtype).to(at::kDouble);  // as they are kept
  const auto cached = [&](const Tensor& of) {                            // [Hkv, position, D]
    if (!c.paged) return of[i].slice(1, 0, position).to(at::kDouble);
    return of.index_select(0, args.blocks[i]).transpose(0, 1).flatten(1, 2).slice(1, 0, position).to(at::kDouble);
  };
  const auto share = c.heads / c.kv_heads;
  const auto keys = at::cat({cached(args.keys), k.unsqueeze(1)}, 1).repeat_interleave(share, 0);
  const auto values = at::cat({cached(args.values), wide(args.v).unsqueeze(1)}, 1).repeat_interleave(share, 0);
  auto scores = at::matmul(keys, q.unsqueeze(2)).squeeze(2) * args.scale;  // [H, position + 1]
  if (c.softcap > 0) scores = at::tanh(scores / c.softcap) * c.softcap;
  const auto distance = at::arange(-position, 1, scores.options());
  if (c.alibi) scores = scores + args.slopes.to(at::kDouble).unsqueeze(1) * distance;
  if (c.window > 0) scores = scores.masked_fill(distance <= -c.window, -INFINITY);
  return at::matmul(scores.softmax(1).unsqueeze(1), values).flatten();
}

void check(const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.dtype << " " << c.heads << "/" << c.kv_heads << " x " << c.width << " turned "
                                    << c.turned << " seen " << c.seen << " window " << c.window << " cap " << c.softcap
                                    << " alibi " << c.alibi << " paged " << c.paged);
  const auto rows = static_cast<int64_t>(c.positions.size()), block = int64_t{16}, blocks = c.seen / block;
  const auto options = at::TensorOptions(at::kCUDA).dtype(c.dtype);
  const auto packed = torch::randn({rows, 1, c.heads + 2 * c.kv_heads, c.width}, options);
  DecodeArguments args{.q = packed.narrow(2, 0, c.heads),
                       .k = packed.narrow(2, c.heads, c.kv_heads),
                       .v = packed.narrow(2, c.heads + c.kv_heads, c.kv_heads),
                       .positions = torch::tensor(c.positions).view({rows, 1}).cuda(),
                       .seen = c.seen,
                       .scale = 1 / std::sqrt(static_cast<double>(c.width)),
                       .softcap = c.softcap,
                       .window = c.window};
  const auto shape = c.paged ? std::vector<int64_t>{rows * blocks, c.kv_heads, block, c.width}
                             : std::vector<int64_t>{rows, c.kv_heads, c.seen, c.width};
  args.keys = torch::randn(shape, options), args.values = torch::randn(shape, options);
  if (c.paged) args.blocks = torch::randperm(rows * blocks).view({rows, blocks}).cuda();
  if (c.turned > 0) {
    const auto angles = torch::rand({c.seen, c.turned / 2}, at::kCUDA) * 6;
    args.angles = at::stack({angles.cos(), angles.sin()});
  }
  if (c.alibi) args.slopes = torch::rand({c.heads}, at::kCUDA) * 0.1;
  std::vector<Tensor> expected;
  for (int64_t i = 0; i < rows; ++i) expected.push_back(expected_row(c, args, i));
  const auto right = at::stack(expected);
  const double bound = c.dtype == at::kFloat ? 1e-4 : c.dtype == at::kHalf ? 2e-3 : 1e-2;
  for (int again = 0; again < 2; ++again) {  // the second time the token is in the cache already
    const auto mine = decode_attention(args).view({rows, -1}).to(at::kDouble);
    for (int64_t i = 0; i < rows; ++i)
      EXPECT_LT(((mine[i] - right[i]).norm() / right[i].norm()).item<double>(), bound) << "row " << i;
  }
  for (int64_t i = 0; i < rows && !c.paged; ++i) {
    const auto position = c.positions[static_cast<size_t>(i)];
    auto key = args.k[i][0].to(at::kDouble);
    if (args.angles.defined()) key = turned(key, args.angles, position);
    const auto kept = args.keys[i].select(1, position).to(at::kDouble);
    EXPECT_LT(((kept - key).norm() / key.norm()).item<double>(), bound) << "row " << i;
    EXPECT_TRUE(args.values[i].select(1, position).equal(args.v[i][0])) << "row " << i;
  }
}

TEST_F(DecodeAttentionGpu, EqualsDoubleForEveryShape) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{{4, 4}, {8, 2}, {8, 1}, {24, 2}})
      for (const int64_t width : {64, 80, 128, 256})
        for (const int64_t seen : {256, 512, 1024})
          check({.dtype = dtype,
                 .heads = heads,
                 .kv_heads = kv_heads,
                 .width = width,
                 .turned = width == 80 ? 20 : width,
                 .positions = {0, 15, seen / 2 + 3, seen - 1},
                 .seen = seen});
}

TEST_F(DecodeAttentionGpu, EqualsDoubleWithMasksAndBlocks) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(2);
  for (const int64_t kv_heads : {2, 8})
    for (const bool paged : {false, true}) {
      check({.kv_heads = kv_heads, .window = 20, .paged = paged});
      check({.kv_heads = kv_heads, .positions = {1000, 3}, .seen = 1024, .window = 300, .paged = paged});
      check({.kv_heads = kv_heads, .softcap = 3, .paged = paged});
      check({.kv_heads = kv_heads, .turned = 0, .alibi = true, .paged = paged});
      check({.kv_heads = kv_heads, .turned = 32, .paged = paged});
    }
}

/// Layers of products and attention, each with a cache of its own. `between` runs after every kernel.
template <class Between>
Tensor through_layers(const Tensor& first, const std::vector<Tensor>& weights, const std::vector<Tensor>& caches,
                      const Tensor& position, Between&& between) {
  auto x = first;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto qkv = kernels::linear(x, weights[i]).view({1, 1, 12, 128});
    between();
    const DecodeArguments args{.q = qkv.narrow(2, 0, 4),
                               .k = qkv.narrow(2, 4, 4),
                               .v = qkv.narrow(2, 8, 4),
                               .positions = position,
                               .keys = caches[2 * i],
                               .values = caches[2 * i + 1],
                               .seen = 256,
                               .scale = 0.1};
    x = decode_attention(args).view({1, 512});
    between();
  }
  return x;
}

TEST_F(DecodeAttentionGpu, EarlierTokensMayBeReadBeforeTheKernelAheadHasEnded) {
  const at::NoGradGuard no_grad;
  torch::manual_seed(3);
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  std::vector<Tensor> weights, caches;
  for (int i = 0; i < 24; ++i) {
    weights.push_back(torch::randn({1536, 512}, options) * 0.05);
    for (int k = 0; k < 2; ++k) caches.push_back(torch::randn({1, 4, 256, 128}, options));
  }
  const auto x = torch::randn({1, 512}, options);
  const auto position = torch::full({1, 1}, 77, at::TensorOptions(at::kCUDA).dtype(at::kLong));
  const auto right = through_layers(x, weights, caches, position, [] { torch::cuda::synchronize(); });
  const kernels::ConstantWeights constant;
  for (int i = 0; i < 50; ++i) {
    // The token of this step is not taken from the cache.
    for (auto& cache : caches) cache.select(2, 77).fill_(NAN);
    EXPECT_TRUE(through_layers(x, weights, caches, position, [] {}).equal(right)) << i;
  }
}

}  // namespace
}  // namespace levin::decode_attention_gpu_tests
