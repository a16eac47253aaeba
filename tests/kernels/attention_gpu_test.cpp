// Fused attention and rotary positions on the GPU against plain operators.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/flop_counter.h"
#include "levin/kernels/attention/attention.h"
#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/attention/causal_attention_detail.h"
#include "levin/kernels/attention/rotary.h"
#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/attention/short_attention_detail.h"
#include "levin/kernels/linear/linear.h"
#include "levin/testing/gpu.h"
#include "levin/testing/scoped_variable.h"

namespace levin::attention_gpu_tests {
namespace {

using at::Tensor;
using kernels::AttentionOptions;
using kernels::detail::AttentionBackend;

class AttentionGpu : public levin::testing::GpuTest {};

double relative(const Tensor& found, const Tensor& expected) {
  const auto a = found.to(at::kCPU, at::kDouble), b = expected.to(at::kCPU, at::kDouble);
  return ((a - b).norm() / b.norm().clamp_min(1e-30)).item<double>();
}

Tensor angles_of(int64_t length, int64_t half) {
  const auto angles = at::outer(torch::arange(length, at::kFloat), torch::linspace(1, 0.01, half));
  return at::stack({angles.cos(), angles.sin()}).cuda();
}

/// In float32, by plain operators.
Tensor exact(const Tensor& qkv, const AttentionOptions& options) {
  auto parts = qkv.to(at::kFloat).unbind(2);
  if (options.rotary.defined())
    for (const size_t i : {0, 1}) parts[i] = kernels::rotate(parts[i], options.rotary);
  const auto mixed = std::get<0>(at::_scaled_dot_product_attention_math(
      parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2), {}, 0.0, options.causal));
  return mixed.transpose(1, 2).flatten(2);
}

Tensor random(std::vector<int64_t> shape, at::ScalarType dtype) {
  return torch::randn(shape, at::kCUDA).to(dtype).requires_grad_();
}

template <class Run>
void compare(const Tensor& qkv, const AttentionOptions& options, double tolerance, const Run& run) {
  const auto expected = exact(qkv, options), found = run();
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_EQ(found.scalar_type(), qkv.scalar_type());
  EXPECT_LT(relative(found, expected), tolerance);
  const auto grad = torch::randn(expected.sizes(), at::kCUDA).to(qkv.scalar_type());
  const auto of = torch::autograd::grad({found}, {qkv}, {grad})[0];
  EXPECT_TRUE(of.is_contiguous());
  EXPECT_LT(relative(of, torch::autograd::grad({expected}, {qkv}, {grad.to(at::kFloat)})[0]), 2 * tolerance);
}

TEST_F(AttentionGpu, OfEveryBackendEqualsThePlainOne) {
  torch::manual_seed(12);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int64_t length : {2, 17, 129, 150, 192, 197, 208, 1000})
      for (const int64_t size : {64, 80, 128})
        for (const bool causal : {false, true})
          for (const auto backend : {AttentionBackend::kCudnn, AttentionBackend::kFlash, AttentionBackend::kShort,
                                     AttentionBackend::kCausal, AttentionBackend::kTorch}) {
            SCOPED_TRACE(::testing::Message() << dtype << " " << length << " x " << size << " " << causal << " "
                                              << static_cast<int>(backend));
            const auto qkv = random({2, length, 3, 3, size}, dtype);
            if (backend != AttentionBackend::kTorch && !kernels::detail::attention_runs_on(backend, qkv, causal, 0))
              continue;
            compare(qkv, {.causal = causal}, dtype == at::kHalf ? 2e-3 : 1e-2,
                    [&] { return kernels::detail::attention_with(qkv, {.causal = causal}, backend); });
          }
}

TEST_F(AttentionGpu, OfEveryShapeEqualsThePlainOne) {
  torch::manual_seed(13);
  for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const int64_t length : {1, 5, 300})
      for (const int64_t size : {6, 24, 64, 160})
        for (const bool turns : {false, true}) {
          SCOPED_TRACE(::testing::Message() << dtype << " " << length << " x " << size << " " << turns);
          const auto qkv = random({3, length, 3, 2, size}, dtype);
          AttentionOptions options{.causal = true};
          if (turns) options.rotary = angles_of(length, size / 2);
          compare(qkv, options, dtype == at::kFloat ? 2e-3 : 1.5e-2, [&] { return kernels::attention(qkv, options); });
        }
}

bool has_short_kernel() {
  return kernels::detail::attention_runs_on(
      AttentionBackend::kShort, torch::empty({1, 197, 3, 1, 64}, torch::dtype(at::kHalf).device(at::kCUDA)), false, 0);
}

Tensor short_attention(const Tensor& qkv) {
  return kernels::detail::attention_with(qkv, {}, AttentionBackend::kShort);
}

/// A multiprocessor gets several heads, one after the other, and not all of them get the same number.
TEST_F(AttentionGpu, OfManyShortSequencesEqualsThePlainOne) {
  if (!has_short_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(18);
  for (const int64_t heads : {1, 7, 16})
    for (const int64_t length : {130, 161, 197}) {
      SCOPED_TRACE(::testing::Message() << heads << " of " << length);
      const auto qkv = random({500 / heads, length, 3, heads, 64}, at::kBFloat16);
      compare(qkv, {}, 1e-2, [&] { return short_attention(qkv); });
    }
}

TEST_F(AttentionGpu, OfShortSequencesIsTheSameEveryTime) {
  if (!has_short_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(19);
  const auto qkv = random({64, 197, 3, 16, 64}, at::kBFloat16);
  const auto grad = torch::randn({64, 197, 1024}, at::kCUDA).to(at::kBFloat16);
  const auto run = [&] {
    const auto out = short_attention(qkv);
    return std::pair(out.detach(), torch::autograd::grad({out}, {qkv}, {grad})[0]);
  };
  const auto [out, of] = run();
  for (int i = 0; i < 20; ++i) {
    const auto [again, of_again] = run();
    ASSERT_TRUE(again.equal(out));
    ASSERT_TRUE(of_again.equal(of));
  }
}

/// Keys that are none have scores of 0; all others are far below.
TEST_F(AttentionGpu, OfShortSequencesWithScoresFarBelowZero) {
  if (!has_short_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(20);
  for (const int64_t length : {130, 197}) {
    auto values = torch::randn({2, length, 3, 3, 64}, at::kCUDA);
    values.select(2, 0).mul_(0.1).add_(8);
    values.select(2, 1).mul_(0.1).sub_(8);
    const auto qkv = values.to(at::kBFloat16).requires_grad_();  // scores of -500
    compare(qkv, {}, 1e-2, [&] { return short_attention(qkv); });
  }
}

TEST_F(AttentionGpu, OfShortSequencesAtAnyAddress) {
  if (!has_short_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(21);
  const auto data = torch::randn({2 * 197 * 3 * 3 * 64 + 1}, at::kCUDA).to(at::kHalf);
  const auto qkv = data.narrow(0, 1, data.numel() - 1).view({2, 197, 3, 3, 64}).requires_grad_();
  compare(qkv, {}, 2e-3, [&] { return short_attention(qkv); });
}

/// Heads with several tiles, tiles that are not full, and sequences of which a multiprocessor has more than one.
TEST_F(AttentionGpu, OfShortSequencesAddsColumnsUp) {
  if (!has_short_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(22);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int64_t length : {129, 197, 208})
      for (const int64_t batch : {1, 3, 64}) {
        SCOPED_TRACE(::testing::Message() << dtype << ", " << batch << " of " << length);
        const auto qkv = random({batch, length, 3, 5, 64}, dtype).detach();
        const auto [out, sums] = kernels::detail::short_attention(qkv);
        const auto grad = torch::randn(out.sizes(), at::kCUDA).to(dtype);
        const auto [plain, none] = kernels::detail::short_attention_backward(grad, qkv, out, sums, std::nullopt);
        const auto [of, columns] = kernels::detail::short_attention_backward(grad, qkv, out, sums, at::kFloat);
        const auto [same, narrow] = kernels::detail::short_attention_backward(grad, qkv, out, sums, dtype);
        EXPECT_TRUE(narrow.equal(columns.to(dtype)));
        EXPECT_FALSE(none.defined());
        EXPECT_TRUE(of.equal(plain));
        const auto wanted = of.to(at::kDouble).flatten(0, 1).sum(0).flatten();
        // Of keys they are zero but for roundings, so the others are the measure.
        EXPECT_LT((columns - wanted).abs().max().item<double>(), 5e-3 * wanted.abs().max().item<double>());
      }
}

bool has_causal_kernel() {
  return kernels::detail::attention_runs_on(
      AttentionBackend::kCausal, torch::empty({1, 512, 3, 1, 64}, torch::dtype(at::kHalf).device(at::kCUDA)), true, 0);
}

Tensor causal_attention(const Tensor& qkv) {
  return kernels::detail::attention_with(qkv, {.causal = true}, AttentionBackend::kCausal);
}

/// Tiles that are not full, an odd number of them, and clusters that get several heads, not all the same number.
TEST_F(AttentionGpu, GradientsOfCausalAttentionEqualThePlainOnes) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(24);
  for (const int64_t heads : {1, 7, 12})
    for (const int64_t length : {129, 257, 384, 777, 1024}) {
      SCOPED_TRACE(::testing::Message() << heads << " of " << length);
      const auto qkv = random({140 / heads, length, 3, heads, 64}, at::kBFloat16);
      compare(qkv, {.causal = true}, 1e-2, [&] { return causal_attention(qkv); });
    }
  const auto longest = random({1, 2048, 3, 3, 64}, at::kHalf);
  compare(longest, {.causal = true}, 2e-3, [&] { return causal_attention(longest); });
}

TEST_F(AttentionGpu, GradientsOfCausalAttentionAreTheSameEveryTime) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(25);
  const auto qkv = random({16, 1024, 3, 12, 64}, at::kBFloat16).detach();
  const auto result = kernels::detail::fused_attention(qkv, true, 0, AttentionBackend::kCausal);
  const auto grad = torch::randn(result.out.transpose(1, 2).sizes(), at::kCUDA).to(at::kBFloat16).transpose(1, 2);
  const auto run = [&] {
    return kernels::detail::fused_attention_backward(grad, qkv, result, true, 0, AttentionBackend::kCausal);
  };
  const auto of = run();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(run().equal(of));
}

TEST_F(AttentionGpu, GradientsOfCausalAttentionWithScoresFarBelowZero) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(26);
  auto values = torch::randn({2, 300, 3, 3, 64}, at::kCUDA);
  values.select(2, 0).mul_(0.1).add_(8);
  values.select(2, 1).mul_(0.1).sub_(8);
  const auto qkv = values.to(at::kBFloat16).requires_grad_();  // scores of -500
  compare(qkv, {.causal = true}, 1e-2, [&] { return causal_attention(qkv); });
}

/// Of later keys they are 60 times those of the first tile, or the first tile has the largest: exponentials that are
/// relative to it would overflow, or vanish.
TEST_F(AttentionGpu, OfCausalAttentionWithScoresThatGrowAndFall) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(29);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const double sign : {-1.0, 1.0}) {
      SCOPED_TRACE(::testing::Message() << dtype << ", " << sign);
      auto values = torch::randn({2, 900, 3, 3, 64}, at::kCUDA);
      values.select(2, 0).mul_(0.1).add_(sign * 8);
      values.select(2, 1).mul_(0.1).add_(torch::linspace(-8, 8, 900, at::kCUDA).view({1, -1, 1, 1}));
      const auto qkv = values.to(dtype).requires_grad_();  // scores of -512 to 512
      compare(qkv, {.causal = true}, dtype == at::kHalf ? 2e-3 : 1e-2, [&] { return causal_attention(qkv); });
    }
}

TEST_F(AttentionGpu, OfCausalAttentionIsTheSameEveryTimeAndHasTheSums) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(30);
  for (const int64_t length : {129, 200, 512, 1024, 2048}) {
    SCOPED_TRACE(length);
    const auto qkv = random({5, length, 3, 12, 64}, at::kBFloat16).detach();
    const auto [out, sums] = kernels::detail::causal_attention(qkv);
    const auto parts = qkv.to(at::kFloat).permute({2, 0, 3, 1, 4});  // [3, B, H, T, D]
    const auto scores = parts[0].matmul(parts[1].transpose(-1, -2)).div_(8);
    const auto later = torch::ones({length, length}, torch::dtype(at::kBool).device(at::kCUDA)).triu_(1);
    const auto wanted = scores.masked_fill_(later, -INFINITY).logsumexp(-1);
    EXPECT_LT((sums - wanted).abs().max().item<double>(), 1e-2);
    for (int i = 0; i < 20; ++i) {
      const auto [again, sums_again] = kernels::detail::causal_attention(qkv);
      ASSERT_TRUE(again.equal(out) && sums_again.equal(sums));
    }
  }
}

TEST_F(AttentionGpu, GradientsOfCausalAttentionAtAnyAddress) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(27);
  const auto data = torch::randn({2 * 300 * 3 * 3 * 64 + 1}, at::kCUDA).to(at::kHalf);
  const auto qkv = data.narrow(0, 1, data.numel() - 1).view({2, 300, 3, 3, 64}).requires_grad_();
  compare(qkv, {.causal = true}, 2e-3, [&] { return causal_attention(qkv); });
}

TEST_F(AttentionGpu, GradientsOfCausalAttentionAddColumnsUp) {
  if (!has_causal_kernel()) GTEST_SKIP() << "needs compute capability 9.0";
  torch::manual_seed(28);
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const int64_t length : {129, 640, 1000})
      for (const int64_t batch : {1, 3, 40}) {
        SCOPED_TRACE(::testing::Message() << dtype << ", " << batch << " of " << length);
        const auto qkv = random({batch, length, 3, 5, 64}, dtype).detach();
        const auto result = kernels::detail::fused_attention(qkv, true, 0, AttentionBackend::kCausal);
        const auto out = result.out.transpose(1, 2);
        const auto grad = torch::randn(out.sizes(), at::kCUDA).to(dtype);
        const auto backward = [&](std::optional<at::ScalarType> columns) {
          return kernels::detail::causal_attention_backward(grad, qkv, out, result.sums, columns);
        };
        const auto [plain, none] = backward(std::nullopt);
        const auto [of, columns] = backward(at::kFloat);
        const auto [same, narrow] = backward(dtype);
        EXPECT_TRUE(narrow.equal(columns.to(dtype)));
        EXPECT_FALSE(none.defined());
        EXPECT_TRUE(of.equal(plain));
        const auto wanted = of.to(at::kDouble).flatten(0, 1).sum(0).flatten();
        EXPECT_LT((columns - wanted).abs().max().item<double>(), 5e-3 * wanted.abs().max().item<double>());
      }
}

TEST_F(AttentionGpu, CountsFlopsOfCausalAttention) {
  const auto qkv = random({2, 300, 3, 5, 64}, at::kBFloat16);
  const auto grad = torch::ones({2, 300, 320}, at::kCUDA).to(at::kBFloat16);
  kernels::attention(qkv, {.causal = true});  // where there is something to time
  FlopCounter counter;
  torch::autograd::grad({kernels::attention(qkv, {.causal = true})}, {qkv}, {grad});
  EXPECT_EQ(counter.flops(), 14.0 * 2 * 5 * 300 * 300 * 64);
}

TEST_F(AttentionGpu, CountsFlopsOfShortSequences) {
  const auto qkv = random({2, 197, 3, 5, 64}, at::kBFloat16);
  const auto grad = torch::ones({2, 197, 320}, at::kCUDA).to(at::kBFloat16);
  kernels::attention(qkv);  // where there is something to time
  FlopCounter counter;
  torch::autograd::grad({kernels::attention(qkv)}, {qkv}, {grad});
  EXPECT_EQ(counter.flops(), 14.0 * 2 * 5 * 197 * 197 * 64);
}

TEST_F(AttentionGpu, OfABatchThatIsNotPackedOrEmpty) {
  const auto qkv = torch::randn({2, 3, 33, 4, 64}, at::kCUDA).to(at::kHalf).transpose(1, 2).requires_grad_();
  compare(qkv, {}, 2e-3, [&] { return kernels::attention(qkv); });
  EXPECT_EQ(kernels::attention(torch::empty({0, 33, 3, 4, 64}, torch::dtype(at::kHalf).device(at::kCUDA))).sizes(),
            torch::IntArrayRef({0, 33, 256}));
}

TEST_F(AttentionGpu, BackwardDropsWhatForwardDropped) {
  torch::manual_seed(14);
  for (const auto backend : {AttentionBackend::kCudnn, AttentionBackend::kFlash}) {
    SCOPED_TRACE(static_cast<int>(backend));
    const auto qkv = random({2, 256, 3, 4, 64}, at::kHalf);
    if (!kernels::detail::attention_runs_on(backend, qkv, false, 0.25)) continue;
    const AttentionOptions options{.dropout = 0.25};
    const auto out = kernels::detail::attention_with(qkv, options, backend);
    EXPECT_GT(relative(out, exact(qkv, options)), 0.05);
    // The result is linear in the values, for one choice of what is dropped.
    const auto grad = torch::randn(out.sizes(), at::kCUDA).to(at::kHalf);
    const auto of = torch::autograd::grad({out}, {qkv}, {grad})[0];
    const auto product = [](const Tensor& a, const Tensor& b) {
      return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
    };
    const auto expected = product(out, grad);
    EXPECT_NEAR(product(of.select(2, 2), qkv.select(2, 2)), expected, 0.02 * std::abs(expected) + 1);
    torch::manual_seed(15);
    const auto once = kernels::detail::attention_with(qkv, options, backend);
    torch::manual_seed(15);
    EXPECT_TRUE(kernels::detail::attention_with(qkv, options, backend).equal(once));
    EXPECT_FALSE(kernels::detail::attention_with(qkv, options, backend).equal(once));
  }
}

TEST_F(AttentionGpu, TimingLeavesNoTrace) {
  const auto qkv = random({3, 91, 3, 5, 64}, at::kBFloat16);
  torch::manual_seed(16);
  const auto expected = torch::rand({4}, at::kCUDA);
  torch::manual_seed(16);
  double flops = 0;
  {
    FlopCounter counter;
    kernels::attention(qkv);
    flops = counter.flops();
  }
  EXPECT_TRUE(torch::rand({4}, at::kCUDA).equal(expected));
  EXPECT_EQ(flops, 4.0 * 3 * 5 * 91 * 91 * 64);
}

TEST_F(AttentionGpu, UnderAutocastIsIn16Bits) {
  const auto qkv = random({2, 50, 3, 4, 64}, at::kFloat);
  at::autocast::set_autocast_enabled(at::kCUDA, true);
  at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  const auto out = kernels::attention(qkv);
  at::autocast::set_autocast_enabled(at::kCUDA, false);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LT(relative(out, exact(qkv, {})), 1e-2);
}

TEST_F(AttentionGpu, SecondDerivativesArePlainOnes) {
  const auto qkv = random({1, 20, 3, 2, 16}, at::kHalf);
  const auto second = [&](const Tensor& out) {
    const auto first = torch::autograd::grad({out.to(at::kFloat).square().sum()}, {qkv}, {}, {}, true)[0];
    return torch::autograd::grad({first.to(at::kFloat).square().sum()}, {qkv})[0];
  };
  EXPECT_LT(relative(second(kernels::attention(qkv)), second(exact(qkv, {}))), 5e-2);
}

TEST_F(AttentionGpu, RotaryEqualsTheCpus) {
  torch::manual_seed(17);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble})
    for (const int64_t size : {2, 6, 24, 64, 80}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << size);
      const auto qkv = torch::randn({3, 7, 3, 5, size}, at::kCUDA).to(dtype).requires_grad_();
      const auto angles = angles_of(7, size / 2);
      const auto here = qkv.detach().cpu().to(at::kDouble).requires_grad_();
      const auto expected = kernels::rotary_qk(here, angles.cpu()), found = kernels::rotary_qk(qkv, angles);
      const double tolerance = at::isReducedFloatingType(dtype) ? 4e-3 : 1e-6;
      EXPECT_LT(relative(found, expected), tolerance);
      const auto grad = torch::randn(qkv.sizes(), at::kCUDA).to(dtype);
      EXPECT_LT(relative(torch::autograd::grad({found}, {qkv}, {grad})[0],
                         torch::autograd::grad({expected}, {here}, {grad.cpu().to(at::kDouble)})[0]),
                tolerance);
      EXPECT_TRUE(found.select(2, 2).equal(qkv.select(2, 2)));
    }
}

TEST_F(AttentionGpu, PacksAtAnyAddress) {
  for (const int64_t size : {2, 3, 8, 64})
    for (const int64_t offset : {0, 1, 4}) {
      SCOPED_TRACE(::testing::Message() << size << " at " << offset);
      std::vector<Tensor> parts;
      for (int i = 0; i < 3; ++i)
        parts.push_back(torch::randn({2 * 5 * 3 * size + offset}, at::kCUDA)
                            .to(at::kHalf)
                            .narrow(0, offset, 2 * 5 * 3 * size)
                            .view({2, 5, 3, size}));
      EXPECT_TRUE(kernels::detail::pack_qkv(parts[0], parts[1], parts[2]).equal(at::stack(parts, 2)));
    }
}

void expect_packed_with_sums(const std::vector<Tensor>& parts) {
  const auto dtype = parts[0].scalar_type();
  const auto [packed, sums] = kernels::detail::pack_qkv_and_sums(parts[0], parts[1], parts[2], at::kFloat);
  const auto [again, narrow] = kernels::detail::pack_qkv_and_sums(parts[0], parts[1], parts[2], dtype);
  EXPECT_TRUE(packed.equal(at::stack(parts, 2)));
  EXPECT_TRUE(packed.is_contiguous());
  EXPECT_TRUE(again.equal(packed));
  ASSERT_EQ(narrow.scalar_type(), dtype);
  if (dtype != at::kDouble) {
    EXPECT_TRUE(narrow.equal(sums.to(dtype)));
  }
  const auto columns = packed.to(at::kDouble).flatten(0, 1).flatten(1);
  const auto wanted = columns.sum(0);
  ASSERT_EQ(sums.sizes(), wanted.sizes());
  // Roundings of float32, of the sum of the absolute numbers.
  const auto bound = columns.abs().sum(0) * 1e-5 + 1e-30;
  EXPECT_TRUE(((sums.to(at::kDouble) - wanted).abs() <= bound).all().item<bool>());
}

/// Slices that are not full, rows that no pack divides, strips of columns over two parts.
TEST_F(AttentionGpu, PackingAddsColumnsUp) {
  torch::manual_seed(23);
  const std::vector<std::vector<int64_t>> shapes{{1, 1, 1, 1},    {2, 5, 3, 7},    {3, 33, 1, 5},   {1, 64, 2, 64},
                                                 {2, 333, 5, 40}, {7, 130, 3, 24}, {2, 1000, 9, 8}, {16, 1024, 12, 64}};
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const auto& shape : shapes) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << shape);
      std::vector<Tensor> parts;
      for (int i = 0; i < 3; ++i) parts.push_back((torch::randn(shape, at::kCUDA) + i).to(dtype));
      expect_packed_with_sums(parts);
    }
}

TEST_F(AttentionGpu, PackingAddsColumnsUpOfAnyLayout) {
  torch::manual_seed(24);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    SCOPED_TRACE(dtype);
    std::vector<Tensor> turned, inside;
    for (int i = 0; i < 3; ++i) {
      turned.push_back(torch::randn({3, 4, 37, 16}, at::kCUDA).to(dtype).transpose(1, 2));
      inside.push_back(
          torch::randn({2 * 50 * 3 * 8 + 1}, at::kCUDA).to(dtype).narrow(0, 1, 2 * 50 * 3 * 8).view({2, 50, 3, 8}));
    }
    const auto qkv = torch::randn({2, 45, 3, 4, 16}, at::kCUDA).to(dtype);
    expect_packed_with_sums(turned);
    expect_packed_with_sums(qkv.unbind(2));
    expect_packed_with_sums(inside);
  }
}

TEST_F(AttentionGpu, PackingAddsColumnsUpOfAnEmptyBatch) {
  const auto part = torch::empty({0, 33, 4, 64}, torch::dtype(at::kBFloat16).device(at::kCUDA));
  const auto [packed, sums] = kernels::detail::pack_qkv_and_sums(part, part, part, at::kFloat);
  EXPECT_EQ(packed.sizes(), torch::IntArrayRef({0, 33, 3, 4, 64}));
  EXPECT_TRUE(sums.equal(torch::zeros({768}, at::kCUDA)));
}

TEST_F(AttentionGpu, SumsOfPackingAreTheSameEveryTime) {
  torch::manual_seed(25);
  std::vector<Tensor> parts;
  for (int i = 0; i < 3; ++i) parts.push_back(torch::randn({16, 512, 12, 64}, at::kCUDA).to(at::kBFloat16));
  const auto sums = [&] {
    return std::get<1>(kernels::detail::pack_qkv_and_sums(parts[0], parts[1], parts[2], at::kFloat));
  };
  const auto first = sums();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(sums().equal(first));
}

/// The gradient of a bias before attention, with and without sums that packing has added up.
TEST_F(AttentionGpu, GivesTheGradientOfTheBiasBeforeIt) {
  torch::manual_seed(26);
  const auto x = torch::randn({4, 100, 96}, at::kCUDA).to(at::kBFloat16);
  const auto weight = (torch::randn({3 * 4 * 64, 96}, at::kCUDA) / 10).to(at::kBFloat16);
  const auto grad = torch::randn({4, 100, 256}, at::kCUDA).to(at::kBFloat16);
  for (const bool turns : {false, true})
    for (const auto backend : {AttentionBackend::kCudnn, AttentionBackend::kFlash}) {
      SCOPED_TRACE(::testing::Message() << static_cast<int>(backend) << " " << turns);
      const auto of_bias = [&](const char* sums) {
        const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
        const auto bias = torch::zeros({3 * 4 * 64}, at::kCUDA).to(at::kBFloat16).requires_grad_();
        const auto qkv = kernels::linear(x, weight, bias).view({4, 100, 3, 4, 64});
        if (!kernels::detail::attention_runs_on(backend, qkv, true, 0)) return Tensor();
        AttentionOptions options{.causal = true};
        if (turns) options.rotary = angles_of(100, 32);
        return torch::autograd::grad({kernels::detail::attention_with(qkv, options, backend)}, {bias}, {grad})[0];
      };
      const auto plain = of_bias("0");
      if (!plain.defined()) continue;
      EXPECT_LT(relative(of_bias("1"), plain), 1e-2);
    }
}

}  // namespace
}  // namespace levin::attention_gpu_tests
