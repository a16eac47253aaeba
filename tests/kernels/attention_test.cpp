// Attention and rotary positions on the CPU: the numbers are those of plain operators.
#include "levin/kernels/attention/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/attention/rotary.h"
#include "levin/kernels/attention/rotary_detail.h"
#include "levin/kernels/played_device.h"
#include "levin/testing/error_of.h"

namespace levin::attention_tests {
namespace {

using at::Tensor;
using kernels::attention;
using kernels::rotary_qk;
using kernels::detail::AttentionBackend;
using kernels::detail::AttentionWish;
using ::testing::HasSubstr;

Tensor angles_of(int64_t length, int64_t half) {
  const auto angles = at::outer(torch::arange(length, at::kFloat), torch::linspace(1, 0.01, half));
  return at::stack({angles.cos(), angles.sin()});
}

Tensor plain(const Tensor& qkv, bool causal, const Tensor& angles = {}) {
  auto parts = qkv.unbind(2);
  if (angles.defined())
    for (const int i : {0, 1}) {
      const auto turns = angles.to(qkv.scalar_type()).unsqueeze(2);
      const auto halves = parts[i].chunk(2, -1);
      parts[i] =
          at::cat({halves[0] * turns[0] - halves[1] * turns[1], halves[1] * turns[0] + halves[0] * turns[1]}, -1);
    }
  const auto mixed = at::scaled_dot_product_attention(parts[0].transpose(1, 2), parts[1].transpose(1, 2),
                                                      parts[2].transpose(1, 2), {}, 0.0, causal);
  return mixed.transpose(1, 2).reshape({qkv.size(0), qkv.size(1), qkv.size(3) * qkv.size(4)});
}

TEST(Attention, OfTheCpuIsTorchsToTheBit) {
  torch::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
    for (const bool causal : {false, true})
      for (const bool turns : {false, true}) {
        const auto qkv = torch::randn({2, 7, 3, 4, 8}).to(dtype).requires_grad_();
        const auto angles = turns ? angles_of(7, 4) : Tensor();
        const auto expected = plain(qkv, causal, angles);
        const auto found = attention(qkv, {.causal = causal, .rotary = angles});
        EXPECT_TRUE(found.equal(expected));
        const auto grad = torch::randn({2, 7, 32}).to(dtype);
        EXPECT_TRUE(torch::autograd::grad({found}, {qkv}, {grad})[0].equal(
            torch::autograd::grad({expected}, {qkv}, {grad})[0]));
      }
}

TEST(Attention, DropsInTrainingOnly) {
  const auto qkv = torch::randn({2, 7, 3, 4, 8});
  EXPECT_TRUE(attention(qkv).equal(attention(qkv)));
  EXPECT_FALSE(attention(qkv, {.dropout = 0.5}).equal(attention(qkv, {.dropout = 0.5})));
}

TEST(Attention, MistakesAreOneLine) {
  EXPECT_THAT(testing::error_of([] { attention(torch::zeros({2, 7, 4, 8})); }), HasSubstr("qkv [B, T, 3, H, D]"));
  EXPECT_THAT(testing::error_of([] {
                attention(torch::zeros({2, 7, 3, 4, 8}), {.dropout = 2});
              }),
              HasSubstr("dropout 2 is not in 0 to 1"));
  EXPECT_THAT(testing::error_of([] { kernels::detail::attention_wish("cuddn"); }),
              HasSubstr("did you mean \"cudnn\"?"));
}

/// What would run on CUDA, as far as shapes tell.
TEST(Attention, ChoosesByShapeAndWish) {
  const auto of = [](std::vector<int64_t> shape, at::ScalarType dtype, double dropout = 0,
                     AttentionWish wish = AttentionWish::kAuto) {
    return kernels::detail::attention_backend(torch::empty(shape, torch::dtype(dtype).device(at::kMeta)),
                                              {.dropout = dropout}, wish);
  };
  for (const int64_t length : {129, 197, 208})
    EXPECT_EQ(of({2, length, 3, 4, 64}, at::kBFloat16), AttentionBackend::kShort);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kHalf, 0, AttentionWish::kShort), AttentionBackend::kShort);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kBFloat16, 0, AttentionWish::kCudnn), AttentionBackend::kCudnn);
  for (const int64_t length : {128, 209})
    EXPECT_EQ(of({2, length, 3, 4, 64}, at::kBFloat16, 0, AttentionWish::kShort), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 197, 3, 4, 80}, at::kBFloat16), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kBFloat16, 0, AttentionWish::kFlash), AttentionBackend::kFlash);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kHalf, 0.125), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kHalf, 0.1), AttentionBackend::kFlash);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kHalf, 0.1, AttentionWish::kCudnn), AttentionBackend::kFlash);
  EXPECT_EQ(of({2, 197, 3, 4, 64}, at::kFloat), AttentionBackend::kTorch);
  EXPECT_EQ(of({2, 197, 3, 4, 60}, at::kHalf), AttentionBackend::kTorch);
  EXPECT_EQ(of({2, 197, 3, 4, 256}, at::kHalf), AttentionBackend::kTorch);
  EXPECT_EQ(of({2, 1, 3, 4, 64}, at::kHalf), AttentionBackend::kTorch);
  EXPECT_EQ(of({0, 197, 3, 4, 64}, at::kHalf), AttentionBackend::kTorch);
}

TEST(Attention, ChoosesTheGradientOfCausalAttentionByShapeAndWish) {
  const auto of = [](std::vector<int64_t> shape, double dropout = 0, AttentionWish wish = AttentionWish::kAuto) {
    return kernels::detail::attention_backend(torch::empty(shape, torch::dtype(at::kBFloat16).device(at::kMeta)),
                                              {.causal = true, .dropout = dropout}, wish);
  };
  for (const int64_t length : {129, 197, 1024, 2048})
    for (const auto wish : {AttentionWish::kAuto, AttentionWish::kCausal})
      EXPECT_EQ(of({2, length, 3, 4, 64}, 0, wish), AttentionBackend::kCausal);
  for (const int64_t length : {128, 2049})
    EXPECT_EQ(of({2, length, 3, 4, 64}, 0, AttentionWish::kCausal), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 1024, 3, 4, 128}), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 1024, 3, 4, 64}, 0.125), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 1024, 3, 4, 64}, 0, AttentionWish::kCudnn), AttentionBackend::kCudnn);
  EXPECT_EQ(of({2, 1024, 3, 4, 64}, 0, AttentionWish::kFlash), AttentionBackend::kFlash);
}

/// An estimate of memory has the same tensors as a step: no gradient of q, k or v beside the packed one.
TEST(Attention, OfShortSequencesIsPackedOnMetaTensors) {
  const auto qkv = torch::empty({2, 197, 3, 4, 64}, torch::dtype(at::kBFloat16).device(at::kMeta)).requires_grad_();
  const auto out = kernels::detail::attention_with(qkv, {}, AttentionBackend::kShort);
  EXPECT_EQ(out.sizes(), torch::IntArrayRef({2, 197, 256}));
  const auto grad = torch::autograd::grad({out}, {qkv}, {torch::empty_like(out)})[0];
  EXPECT_EQ(grad.sizes(), qkv.sizes());
  EXPECT_EQ(grad.scalar_type(), at::kBFloat16);
}

TEST(Attention, GradientsOfCausalAttentionArePackedOnMetaTensors) {
  const auto qkv = torch::empty({2, 1024, 3, 4, 64}, torch::dtype(at::kBFloat16).device(at::kMeta));
  const kernels::detail::AttentionResult result{
      qkv.select(2, 0).transpose(1, 2), torch::empty({2, 4, 1024, 1}, torch::device(at::kMeta)), {}, {}};
  const auto grad = kernels::detail::fused_attention_backward(result.out, qkv, result, true, 0,
                                                              AttentionBackend::kCausal, at::kFloat);
  EXPECT_EQ(grad.sizes(), qkv.sizes());
  EXPECT_EQ(grad.scalar_type(), at::kBFloat16);
}

TEST(Rotary, TurnsQueriesAndKeysAndBackAgain) {
  torch::manual_seed(3);
  const auto qkv = torch::randn({2, 5, 3, 4, 8}, at::kDouble), angles = angles_of(5, 4);
  const auto turned = rotary_qk(qkv, angles);
  ASSERT_EQ(turned.sizes(), qkv.sizes());
  for (const int i : {0, 1}) EXPECT_TRUE(turned.select(2, i).equal(kernels::rotate(qkv.select(2, i), angles)));
  EXPECT_TRUE(turned.select(2, 2).equal(qkv.select(2, 2)));
  EXPECT_FALSE(torch::allclose(turned, qkv));
  // Angles are rounded to float32, so lengths are kept to that.
  EXPECT_TRUE(torch::allclose(turned.square().sum(-1), qkv.square().sum(-1), 1e-5));
  const auto back = kernels::detail::rotary_by_aten(turned, angles, /*inverse=*/true);
  EXPECT_TRUE(torch::allclose(back, qkv, 1e-5, 1e-5));
}

TEST(Rotary, GradientsAreThoseOfTheComposition) {
  torch::manual_seed(4);
  const auto qkv = torch::randn({2, 5, 3, 4, 8}, at::kDouble).requires_grad_(), angles = angles_of(5, 4);
  const auto composed = [&](const Tensor& x) {
    const auto parts = x.unbind(2);
    return at::stack({kernels::rotate(parts[0], angles), kernels::rotate(parts[1], angles), parts[2]}, 2);
  };
  const auto first = [&](const Tensor& y) {
    return torch::autograd::grad({y.square().square().sum()}, {qkv}, {}, {}, /*create_graph=*/true)[0];
  };
  const auto found = first(rotary_qk(qkv, angles)), expected = first(composed(qkv));
  EXPECT_TRUE(torch::allclose(found, expected, 1e-12, 1e-12));
  const auto second = [&](const Tensor& gradient) { return torch::autograd::grad({gradient.sin().sum()}, {qkv})[0]; };
  EXPECT_TRUE(torch::allclose(second(found), second(expected), 1e-12, 1e-12));
}

TEST(Rotary, PacksPartsAndRefusesWhatDoesNotFit) {
  const auto q = torch::randn({2, 5, 4, 8}), k = torch::randn({2, 5, 4, 8}), v = torch::randn({2, 5, 4, 8});
  EXPECT_TRUE(kernels::detail::pack_qkv(q, k, v).equal(at::stack({q, k, v}, 2)));
  EXPECT_THAT(testing::error_of([] {
                rotary_qk(torch::zeros({2, 5, 3, 4, 8}), angles_of(6, 4));
              }),
              HasSubstr("angles [2, T, D / 2]"));
  EXPECT_EQ(rotary_qk(torch::empty({2, 5, 3, 4, 8}, at::kMeta), angles_of(5, 4).to(at::kMeta)).sizes(),
            torch::IntArrayRef({2, 5, 3, 4, 8}));
}

TEST(PackQkv, AddsColumnsUp) {
  torch::manual_seed(5);
  const std::vector<std::vector<int64_t>> shapes{{2, 5, 4, 8}, {3, 7, 1, 5}, {1, 1, 1, 1}, {0, 3, 2, 4}};
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const auto& shape : shapes) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << shape);
      std::vector<Tensor> parts;
      for (int i = 0; i < 3; ++i) parts.push_back(torch::randn(shape).to(dtype));
      const auto [packed, sums] = kernels::detail::pack_qkv_and_sums(parts[0], parts[1], parts[2], at::kFloat);
      EXPECT_TRUE(packed.equal(at::stack(parts, 2)));
      EXPECT_TRUE(sums.equal(packed.view({shape[0] * shape[1], 3 * shape[2] * shape[3]}).sum(0).to(at::kFloat)));
    }
}

TEST(PackQkv, OfMetaTensorsHasSizesAndDtypes) {
  const auto part = torch::empty({2, 5, 4, 8}, torch::dtype(at::kBFloat16).device(at::kMeta));
  const auto [packed, sums] = kernels::detail::pack_qkv_and_sums(part, part, part, at::kFloat);
  EXPECT_EQ(packed.sizes(), torch::IntArrayRef({2, 5, 3, 4, 8}));
  EXPECT_EQ(packed.scalar_type(), at::kBFloat16);
  EXPECT_EQ(sums.sizes(), torch::IntArrayRef({96}));
  EXPECT_EQ(sums.scalar_type(), at::kFloat);
}

TEST(PlayedDevice, IsTheTensorsOrTheOneAskedAbout) {
  EXPECT_EQ(kernels::kernel_device(torch::zeros({1})), c10::kCPU);
  EXPECT_EQ(kernels::kernel_device(torch::empty({1}, at::kMeta)), c10::kCPU);
  kernels::set_played_device(c10::kCUDA);
  EXPECT_EQ(kernels::kernel_device(torch::empty({1}, at::kMeta)), c10::kCUDA);
  EXPECT_EQ(kernels::kernel_device(torch::zeros({1})), c10::kCPU);
  kernels::set_played_device(c10::kCPU);
}

}  // namespace
}  // namespace levin::attention_tests
