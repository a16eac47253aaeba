// Sums of columns that a kernel has computed on the way, and the layers that take them for the gradients of biases.
#include "levin/kernels/linear/known_sums.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/attention/attention_detail.h"
#include "levin/kernels/linear/linear_detail.h"
#include "levin/kernels/norm/residual_norm_detail.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/scoped_variable.h"

namespace levin::kernels::detail {
namespace {

TEST(KnownSums, AreOfOneTensorOrAViewOfIt) {
  const auto grad = torch::randn({2, 3, 2, 4}), sums = grad.flatten(0, 1).flatten(1).sum(0);
  remember_column_sums(grad, sums);
  EXPECT_TRUE(torch::equal(take_column_sums(grad.view({6, 8}), at::kFloat), sums));
  EXPECT_FALSE(take_column_sums(grad.view({6, 8}), at::kFloat).defined()) << "taken once";
  remember_column_sums(grad, sums);
  EXPECT_EQ(take_column_sums(grad.view({6, 8}), at::kBFloat16).scalar_type(), at::kBFloat16);
}

TEST(KnownSums, AreNotThoseOfAnother) {
  const auto grad = torch::randn({8, 8});
  const auto taken_for = [&](const Tensor& other) {
    remember_column_sums(grad, grad.sum(0));
    return take_column_sums(other, at::kFloat).defined();
  };
  EXPECT_TRUE(taken_for(grad));
  EXPECT_FALSE(taken_for(grad.clone()));
  EXPECT_FALSE(taken_for(grad.t())) << "its columns are rows";
  EXPECT_FALSE(taken_for(grad.view({4, 16}))) << "other columns";
  EXPECT_FALSE(taken_for(grad.narrow(0, 0, 4)));
  remember_column_sums(grad, grad.sum(0));
  grad.mul_(2);
  EXPECT_FALSE(take_column_sums(grad, at::kFloat).defined()) << "it has changed";
  remember_column_sums(grad, {});
  EXPECT_FALSE(take_column_sums(grad, at::kFloat).defined());
}

TEST(KnownSums, HoldNoGradient) {
  auto grad = torch::randn({4, 4});
  const auto storage = grad.storage().getWeakStorageImpl();
  remember_column_sums(grad, grad.sum(0));
  grad.reset();
  EXPECT_EQ(storage.use_count(), 0u);
  EXPECT_FALSE(take_column_sums(torch::randn({4, 4}), at::kFloat).defined());
}

/// Gradients of x, weight and bias of a layer whose result is the branch of a norm; `twice`: and is used elsewhere too.
std::vector<Tensor> gradients(at::ScalarType branch_dtype, bool twice) {
  torch::manual_seed(11);
  const auto x = torch::randn({6, 5}).to(branch_dtype).set_requires_grad(true);
  const auto weight = torch::randn({8, 5}).set_requires_grad(true), bias = torch::randn({8}).set_requires_grad(true);
  const auto stream = torch::randn({6, 8}).set_requires_grad(true);
  const auto branch = fused_linear(x, weight, bias, weight.to(branch_dtype));
  const auto [output, h] =
      fused_residual_norm(stream, branch, torch::rand({8}), torch::randn({8}), 1e-5, false, 0, at::kFloat);
  auto loss = output.sin().sum() + h.square().mean();
  if (twice) loss = loss + branch.cos().sum();
  loss.backward();
  return {x.grad(), weight.grad(), bias.grad(), stream.grad()};
}

TEST(KnownSums, GiveTheGradientsOfBiases) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool twice : {false, true}) {
      const auto with = [&](const char* sums) {
        const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
        return gradients(dtype, twice);
      };
      const auto plain = with("0"), known = with("1");
      for (const size_t i : {0, 1, 3}) EXPECT_TRUE(torch::equal(known[i], plain[i])) << i;
      EXPECT_TRUE(torch::allclose(known[2], plain[2], 1e-2, dtype == at::kFloat ? 1e-5 : 3e-2)) << known[2] - plain[2];
      // In 16 bits the sum of what was not rounded is another one; else nobody has taken it.
      if (dtype == at::kBFloat16) {
        EXPECT_EQ(torch::equal(known[2], plain[2]), twice);
      }
    }
}

// ---- attention

/// Attention as its backward ends: with gradients of q, k and v that are packed. `bias` is that of the layer before.
struct PackedGradients : torch::autograd::Function<PackedGradients> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& qkv, const Tensor& grads,
                        int64_t bias) {
    context->save_for_backward({grads});
    context->saved_data["bias"] = bias;
    return qkv.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list) {
    const auto grads = context->get_saved_variables()[0].unbind(0);
    const auto bias = static_cast<at::ScalarType>(context->saved_data["bias"].toInt());
    return {packed_gradient(grads[0], grads[1], grads[2], bias), {}, {}};
  }
};

struct OfALayer {
  Tensor weight, bias;
  int column_sums = 0;
};

/// Gradients of a layer before attention of 3 sequences of 5 tokens with `heads` of `size` numbers.
OfALayer gradients_before_attention(const char* sums, at::ScalarType dtype, int64_t heads, int64_t size) {
  const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
  torch::manual_seed(12);
  const auto columns = 3 * heads * size;
  const auto x = torch::randn({3, 5, 7}).to(dtype);
  const auto weight = torch::randn({columns, 7}).set_requires_grad(true),
             bias = torch::randn({columns}).set_requires_grad(true);
  const auto grads = torch::randn({3, 3, 5, heads, size}).to(dtype);
  const auto qkv = fused_linear(x, weight, bias, weight.to(dtype)).view({3, 5, 3, heads, size});
  const testing::OperatorCounts counted;
  PackedGradients::apply(qkv, grads, static_cast<int64_t>(at::kFloat)).backward();
  EXPECT_TRUE(torch::allclose(bias.grad(), grads.to(at::kDouble).sum({1, 2}).flatten().to(at::kFloat), 1e-2, 3e-2));
  return {weight.grad(), bias.grad(), counted["levin::column_sum"]};
}

TEST(KnownSums, OfPackedGradientsGiveTheGradientOfTheBias) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t size : {1, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << size);
      const auto plain = gradients_before_attention("0", dtype, 3, size);
      const auto known = gradients_before_attention("1", dtype, 3, size);
      EXPECT_EQ(plain.column_sums, 1);
      EXPECT_EQ(known.column_sums, 0) << "packing has added the columns up";
      EXPECT_TRUE(torch::equal(known.weight, plain.weight));
      EXPECT_TRUE(torch::equal(known.bias, plain.bias));
    }
}

TEST(KnownSums, OfPackedGradientsAreForABiasAlone) {
  const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", "1");
  const auto part = torch::randn({2, 3, 2, 4});
  const auto of_bias = packed_gradient(part, part, part, at::kFloat);
  EXPECT_TRUE(take_column_sums(of_bias.view({6, 24}), at::kFloat).defined());
  EXPECT_TRUE(packed_gradient(part, part, part, std::nullopt).equal(of_bias));
  EXPECT_FALSE(take_column_sums(of_bias.view({6, 24}), at::kFloat).defined());
}

}  // namespace
}  // namespace levin::kernels::detail
