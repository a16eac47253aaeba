// The tokens of a vision transformer on the CPU: torch's own, and the operators that CUDA has kernels for.
#include "levin/kernels/tokens/prepend_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/tokens/prepend_token_detail.h"
#include "levin/kernels/tokens/prepend_token_launch.h"
#include "levin/nn/saved_tensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gradients.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/plays_cuda.h"
#include "levin/testing/scoped_variable.h"
#include "levin/testing/tensors.h"

namespace levin::prepend_token_tests {
namespace {

using at::Tensor;
using kernels::prepend_token;
using kernels::detail::fused_prepend_token;
using ::testing::HasSubstr;
using testing::same_bytes;

struct Dtypes {
  at::ScalarType patches, token, positions;
};
constexpr Dtypes kAll[]{{at::kFloat, at::kFloat, at::kFloat},          {at::kDouble, at::kDouble, at::kDouble},
                        {at::kBFloat16, at::kBFloat16, at::kBFloat16}, {at::kHalf, at::kHalf, at::kHalf},
                        {at::kBFloat16, at::kFloat, at::kFloat},       {at::kHalf, at::kFloat, at::kFloat},
                        {at::kBFloat16, at::kBFloat16, at::kFloat},    {at::kFloat, at::kBFloat16, at::kDouble}};

/// Patches [b, n, d], token and positions, leaves all of them.
std::vector<Tensor> leaves(int64_t b, int64_t n, int64_t d, const Dtypes& dtypes = kAll[0]) {
  return {torch::randn({b, n, d}).to(dtypes.patches).set_requires_grad(true),
          torch::randn({1, 1, d}).to(dtypes.token).set_requires_grad(true),
          torch::randn({1, n + 1, d}).to(dtypes.positions).set_requires_grad(true)};
}

Tensor joined(const std::vector<Tensor>& in) {
  const auto first = in[1].expand({in[0].size(0), -1, -1}).contiguous();
  return at::cat({first, in[0]}, 1) + in[2];
}

TEST(PrependToken, IsTorchsOnTheCpu) {
  torch::manual_seed(31);
  for (const auto& dtypes : kAll)
    for (const auto& [b, n, d] : {std::array<int64_t, 3>{3, 4, 5}, {1, 1, 1}, {2, 7, 20}, {0, 4, 5}, {2, 0, 5}}) {
      SCOPED_TRACE(::testing::Message() << dtypes.patches << " " << dtypes.positions << " " << b << " " << n);
      const auto in = leaves(b, n, d, dtypes);
      const auto theirs = joined(in), mine = prepend_token(in[0], in[1], in[2]);
      const auto fused = fused_prepend_token(in[0], in[1], in[2]);
      ASSERT_TRUE(same_bytes(mine, theirs));
      ASSERT_TRUE(same_bytes(fused, theirs));
      EXPECT_EQ(mine.scalar_type(), kernels::detail::token_dtype(in[0], in[1], in[2]));
      const auto grad = torch::randn_like(theirs);
      const auto right = torch::autograd::grad({theirs}, in, {grad});
      const auto own = torch::autograd::grad({mine}, in, {grad}), of_fused = torch::autograd::grad({fused}, in, {grad});
      for (size_t i = 0; i < in.size(); ++i) {
        EXPECT_TRUE(same_bytes(own[i], right[i])) << i;
        EXPECT_TRUE(of_fused[i].is_contiguous());
        EXPECT_EQ(of_fused[i].scalar_type(), in[i].scalar_type());
        EXPECT_TRUE(torch::allclose(of_fused[i].to(at::kDouble), right[i].to(at::kDouble), 1e-2, 1e-2)) << i;
      }
    }
}

TEST(PrependToken, WithoutPositionsIsCat) {
  const auto in = leaves(2, 3, 4);
  EXPECT_TRUE(same_bytes(prepend_token(in[0], in[1], {}), at::cat({in[1].expand({2, 1, 4}), in[0]}, 1)));
}

TEST(PrependToken, GradientsAreThoseOfDifferences) {
  torch::manual_seed(32);
  const auto f = [](const std::vector<Tensor>& in) { return fused_prepend_token(in[0], in[1], in[2]).pow(3).sum(); };
  std::vector<Tensor> in;
  for (const auto& each : leaves(2, 3, 4, kAll[1])) in.push_back(each.detach());
  EXPECT_LT(testing::gradient_error(f, in), 1e-6);
  EXPECT_LT(testing::second_gradient_error(f, in), 1e-3);
}

TEST(PrependToken, OnlyWantedGradientsAreComputed) {
  for (const int frozen : {0, 1, 2}) {
    auto in = leaves(2, 3, 4);
    in[static_cast<size_t>(frozen)].set_requires_grad(false);
    fused_prepend_token(in[0], in[1], in[2]).square().sum().backward();
    const auto right = 2 * joined(in).detach();
    for (int i = 0; i < 3; ++i) {
      const auto& grad = in[static_cast<size_t>(i)].grad();
      EXPECT_EQ(grad.defined(), i != frozen) << frozen << " " << i;
      if (!grad.defined()) continue;
      EXPECT_TRUE(torch::allclose(grad, i == 0   ? right.narrow(1, 1, 3)
                                        : i == 1 ? right.narrow(1, 0, 1).sum(0, true)
                                                 : right.sum(0, true)))
          << frozen << " " << i;
    }
  }
}

/// The layer before the tokens takes the gradient of its bias from their backward.
TEST(PrependToken, AddsTheColumnsOfPatchesUp) {
  struct Found {
    Tensor weight, bias;
    int column_sums;
  };
  const auto run = [](const char* sums, at::ScalarType dtype) {
    const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
    torch::manual_seed(33);
    const auto in = leaves(3, 4, 6);
    const auto x = torch::randn({3, 4, 5}).to(dtype);
    const auto weight = torch::randn({6, 5}).set_requires_grad(true), bias = torch::randn({6}).set_requires_grad(true);
    const auto patches = kernels::detail::fused_linear(x, weight, bias, weight.to(dtype));
    const testing::OperatorCounts counted;
    fused_prepend_token(patches, in[1], in[2]).sin().sum().backward();
    return Found{weight.grad(), bias.grad(), counted["levin::column_sum"]};
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto plain = run("0", dtype), known = run("1", dtype);
    EXPECT_EQ(plain.column_sums, 1);
    EXPECT_EQ(known.column_sums, 0);
    EXPECT_TRUE(torch::equal(known.weight, plain.weight));
    EXPECT_TRUE(torch::allclose(known.bias, plain.bias, 1e-2, dtype == at::kFloat ? 1e-5 : 3e-2));
  }
}

TEST(PrependToken, OnMetaMakesWhatCudaMakes) {
  const testing::PlaysCuda played;
  const auto meta = [](at::IntArrayRef sizes, at::ScalarType dtype) {
    return torch::empty(sizes, torch::dtype(dtype).device(at::kMeta)).set_requires_grad(true);
  };
  for (const auto& dtypes : kAll) {
    const auto patches = meta({4, 9, 16}, dtypes.patches), token = meta({1, 1, 16}, dtypes.token),
               positions = meta({1, 10, 16}, dtypes.positions);
    SavedBytes saved;
    const testing::OperatorCounts counted;
    const auto out = prepend_token(patches, token, positions);
    EXPECT_EQ(saved.bytes(), 0);
    EXPECT_EQ(out.sizes(), at::IntArrayRef({4, 10, 16}));
    EXPECT_EQ(out.scalar_type(), kernels::detail::token_dtype(patches, token, positions));
    // What is wider than mixed precision is torch's.
    EXPECT_EQ(counted["levin::prepend_token"], dtypes.positions != at::kDouble || dtypes.patches == at::kDouble);
    out.backward(torch::empty_like(out));
    EXPECT_EQ(counted["levin::prepend_token_backward"], counted["levin::prepend_token"]);
    for (const auto& each : {patches, token, positions}) {
      EXPECT_EQ(each.grad().sizes(), each.sizes());
      EXPECT_EQ(each.grad().scalar_type(), each.scalar_type());
    }
  }
}

TEST(PrependToken, AllocatesPartialSumsWhereSomethingIsAddedUp) {
  using kernels::detail::allocate_token_backward;
  const auto grad = torch::empty({64, 197, 1024}, at::kMeta);
  const auto all = allocate_token_backward(grad, at::kBFloat16, at::kFloat, at::kFloat, at::kFloat, 132);
  EXPECT_EQ(all.partials.sizes(), at::IntArrayRef({2, 197, 1024}));
  EXPECT_EQ(std::get<0>(all.gradients).sizes(), at::IntArrayRef({64, 196, 1024}));
  EXPECT_EQ(std::get<3>(all.gradients).sizes(), at::IntArrayRef({1024}));
  const auto none = allocate_token_backward(grad, at::kBFloat16, std::nullopt, std::nullopt, std::nullopt, 132);
  EXPECT_FALSE(none.partials.defined());
  EXPECT_FALSE(std::get<2>(none.gradients).defined());
}

TEST(PrependToken, PartsOfABatchHaveAFewImages) {
  using kernels::detail::NumberType, kernels::detail::token_parts;
  for (const int64_t images : {1, 3, 4, 7, 64, 100000})
    for (const int64_t columns : {1, 20, 768, 1280, 100000})
      for (const auto type : {NumberType::kFloat, NumberType::kBFloat16, NumberType::kDouble}) {
        const auto parts = token_parts({images, 197, columns}, type, 132);
        EXPECT_GE(parts, 1);
        EXPECT_LE(parts, 1024);
        EXPECT_TRUE(parts == 1 || images / parts >= 4) << images << " " << columns;
      }
}

TEST(PrependToken, OtherSizesAreOneLine) {
  const auto in = leaves(2, 3, 4);
  EXPECT_THAT(testing::error_of([&] { prepend_token(in[0], in[1][0], in[2]); }), HasSubstr("the token [1, 1, D]"));
  EXPECT_THAT(testing::error_of([&] { prepend_token(in[0], in[1], in[2].narrow(1, 0, 3)); }),
              HasSubstr("positions must be [1, 4, 4], got [1, 3, 4]"));
}

}  // namespace
}  // namespace levin::prepend_token_tests
