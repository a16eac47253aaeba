#include "levin/kernels/decode/few_rows.h"

#include <cmath>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "levin/kernels/decode/decode.h"
#include "levin/kernels/linear/linear.h"
#include "levin/kernels/norm/residual_norm.h"

namespace levin::kernels_tests {
namespace {

using at::Tensor;

double difference(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(FewRows, LinearIsThatOfTorch) {
  const at::NoGradGuard no_grad;
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t columns : {1, 7, 16, 33, 200})
      for (const int64_t rows : {1, 5, 130})
        for (int64_t count = 1; count <= kernels::detail::kFewRows; ++count) {
          const auto x = at::randn({count, 1, columns}).to(dtype), weight = at::randn({rows, columns}).to(dtype),
                     bias = at::randn({rows}).to(dtype);
          const auto wide = [](const Tensor& t) { return t.to(at::kDouble); };
          const auto exact = at::linear(wide(x), wide(weight), wide(bias));
          const auto bound = dtype == at::kFloat ? 1e-5 : dtype == at::kHalf ? 1e-3 : 8e-3;
          ASSERT_TRUE(kernels::detail::runs_few_rows_linear(x, weight, bias));
          const auto found = kernels::linear(x, weight, bias);
          EXPECT_EQ(found.scalar_type(), dtype);
          EXPECT_EQ(found.sizes(), exact.sizes());
          EXPECT_LT(difference(found, exact) / (1 + exact.abs().max().item<double>()), bound) << dtype << columns;
          // A row alone has the very same numbers.
          EXPECT_TRUE(at::equal(kernels::linear(x[0], weight), kernels::linear(x, weight)[0]) || count > 1);
        }
}

TEST(FewRows, InfiniteAndSmallestNumbersOfHalfStay) {
  const at::NoGradGuard no_grad;
  const auto infinity = std::numeric_limits<double>::infinity();
  const auto weight =
      at::tensor({infinity, 6e-8, -infinity, -6e-8, 1.0, 65504.0}, at::kDouble).to(at::kHalf).unsqueeze(1);
  const auto found = kernels::linear(at::ones({1, 1}, at::kHalf), weight);
  EXPECT_TRUE(at::equal(found, weight.t()));
  const auto longer = weight.repeat({1, 32});  // registers and not only the rest of a row
  auto one = at::zeros({1, 32}, at::kHalf);
  one[0][3] = 1;
  const auto sums = kernels::linear(one, longer);
  EXPECT_TRUE(std::isnan(sums[0][0].item<double>()));  // infinity * 0
  EXPECT_EQ(sums[0][1].item<double>(), weight[1][0].item<double>());
  EXPECT_EQ(sums[0][5].item<double>(), 65504.0);
}

TEST(FewRows, ManyRowsAndGradientsAreLeftToTorch) {
  const auto weight = at::randn({8, 8});
  EXPECT_FALSE(kernels::detail::runs_few_rows_linear(at::randn({1, 8}), weight, {}));  // gradients are on
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(kernels::detail::runs_few_rows_linear(at::randn({1, 8}), weight, {}));
  EXPECT_FALSE(kernels::detail::runs_few_rows_linear(at::randn({kernels::detail::kFewRows + 1, 8}), weight, {}));
  EXPECT_FALSE(kernels::detail::runs_few_rows_linear(at::randn({1, 8}), weight.t(), {}));
  EXPECT_FALSE(kernels::detail::runs_few_rows_linear(at::randn({1, 8}, at::kDouble), weight.to(at::kDouble), {}));
}

TEST(FewRows, NormsAreThoseOfTorch) {
  const at::NoGradGuard no_grad;
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t columns : {3, 64, 101}) {
      const auto h = (at::randn({2, 1, columns}) * 3 + 1).to(dtype), branch = at::randn({2, 1, columns}).to(dtype);
      const auto weight = at::randn({columns}).to(dtype), bias = at::randn({columns}).to(dtype);
      const auto bound = dtype == at::kFloat ? 1e-5 : 5e-2;
      const auto sum = h + branch;
      const auto layer = kernels::residual_norm(h, branch, weight, bias, 1e-5, false);
      EXPECT_TRUE(at::equal(layer.stream, sum));
      EXPECT_LT(difference(layer.output, at::layer_norm(sum, {columns}, weight, bias, 1e-5)), bound) << columns;
      const auto rms = kernels::residual_norm(h, {}, weight, {}, 1e-6, true);
      EXPECT_LT(difference(rms.output, at::rms_norm(h, {columns}, weight, 1e-6)), bound) << columns;
    }
}

/// The step in operators of torch, in double.
Tensor plain_attention(const kernels::DecodeArguments& a, const Tensor& keys, const Tensor& values) {
  const auto rows = a.q.size(0), heads = a.q.size(2), width = a.q.size(3), shared = a.k.size(2);
  const auto turned = [&](const Tensor& x, int64_t position) {
    if (!a.angles.defined()) return x;
    const auto half = a.angles.size(2);
    const auto c = a.angles[0][position].to(at::kDouble), s = a.angles[1][position].to(at::kDouble);
    const auto first = x.slice(-1, 0, half), second = x.slice(-1, half, 2 * half);
    return at::cat({first * c - second * s, second * c + first * s, x.slice(-1, 2 * half)}, -1);
  };
  std::vector<Tensor> out;
  for (int64_t r = 0; r < rows; ++r) {
    const auto position = a.positions[r][0].item<int64_t>();
    const auto q = turned(a.q[r][0].to(at::kDouble), position), k = turned(a.k[r][0].to(at::kDouble), position);
    auto own_keys = keys[a.first_row + r].to(at::kDouble).slice(1, 0, position + 1).clone(),
         own_values = values[a.first_row + r].to(at::kDouble).slice(1, 0, position + 1).clone();
    own_keys.select(1, position).copy_(k);
    own_values.select(1, position).copy_(a.v[r][0]);
    const auto wide = [&](const Tensor& x) { return x.repeat_interleave(heads / shared, 0); };
    auto scores = at::matmul(wide(own_keys), q.unsqueeze(2)).squeeze(2) * a.scale;  // [H, S]
    if (a.softcap > 0) scores = at::tanh(scores / a.softcap) * a.softcap;
    const auto distance = at::arange(position + 1, at::kDouble) - static_cast<double>(position);
    if (a.slopes.defined()) scores = scores + a.slopes.to(at::kDouble).unsqueeze(1) * distance;
    if (a.window > 0) scores = scores.masked_fill(distance <= -static_cast<double>(a.window), -INFINITY);
    out.push_back(at::matmul(at::softmax(scores, 1).unsqueeze(1), wide(own_values)).reshape({1, 1, heads * width}));
  }
  return at::cat(out);
}

TEST(FewRows, AttentionIsThatOfTorch) {
  const at::NoGradGuard no_grad;
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t width : {6, 16, 64})
      for (int kind = 0; kind < 5; ++kind) {
        const int64_t rows = 2, heads = 4, shared = kind == 4 ? 4 : 2, capacity = 70;
        auto keys = at::randn({4, shared, capacity, width}).to(dtype), values = at::randn_like(keys);
        const auto before = keys.clone(), before_values = values.clone();
        kernels::DecodeArguments a{.q = at::randn({rows, 1, heads, width}).to(dtype),
                                   .k = at::randn({rows, 1, shared, width}).to(dtype),
                                   .v = at::randn({rows, 1, shared, width}).to(dtype),
                                   .positions = at::tensor({65, 3}, at::kLong).unsqueeze(1),
                                   .angles = {},
                                   .keys = keys,
                                   .values = values,
                                   .first_row = 1,
                                   .seen = 66,
                                   .scale = 0.3,
                                   .softcap = kind == 1 ? 2.0 : 0.0,
                                   .window = kind == 2 ? 5 : 0,
                                   .slopes = kind == 3 ? at::tensor({0.5, 0.25, 0.1, 0.02}, at::kFloat) : Tensor()};
        if (kind % 2 == 0) {
          const auto angles = at::rand({capacity, width / 2 - (kind == 2 ? 1 : 0)}) * 6;
          a.angles = at::stack({angles.cos(), angles.sin()});
        }
        ASSERT_TRUE(kernels::has_decode_kernel_cpu(keys));
        const auto exact = plain_attention(a, before, before_values);
        const auto found = kernels::decode_attention_cpu(a);
        EXPECT_LT(difference(found, exact), dtype == at::kFloat ? 1e-5 : 3e-2) << dtype << " " << width << " " << kind;
        // Written where they belong, and nowhere else.
        EXPECT_TRUE(at::equal(values[1].select(1, 65), a.v[0][0]));
        EXPECT_TRUE(at::equal(keys[0], before[0]));
        EXPECT_TRUE(at::equal(keys[1].slice(1, 0, 65), before[1].slice(1, 0, 65)));
        EXPECT_TRUE(at::equal(keys[2].slice(1, 4), before[2].slice(1, 4)));
      }
}

}  // namespace
}  // namespace levin::kernels_tests
