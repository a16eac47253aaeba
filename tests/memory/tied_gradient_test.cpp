// The gradient of a weight that the embedding and the head of a decoder share.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/embedding/embedding_detail.h"
#include "levin/models/decoder_loss.h"
#include "levin/testing/operator_counts.h"

namespace levin::tied_gradient_tests {
namespace {

using at::Tensor;
using kernels::detail::fused_embedding;
using models::linear_cross_entropy;

/// More ids than torch's kernel for few of them takes.
constexpr int64_t kIds = 4000, kRows = 50, kColumns = 8;

class TiedGradient : public ::testing::Test {
 protected:
  TiedGradient() {
    torch::manual_seed(51);
    weight = torch::randn({kRows, kColumns}, at::kDouble).requires_grad_();
    ids = torch::randint(0, kRows, {kIds}), targets = torch::randint(0, kRows, {kIds});
  }

  [[nodiscard]] Tensor loss(const Tensor& embedded, const Tensor& head) const {
    return linear_cross_entropy(embedded.tanh(), head, targets, -1);
  }
  [[nodiscard]] Tensor plain_loss() const { return loss(at::embedding(weight, ids), weight); }
  [[nodiscard]] Tensor tied_loss() const { return loss(fused_embedding(weight, ids, -1), weight); }

  void expect_in_place(int times) {
    EXPECT_EQ(counted["levin::add_embedding_backward"], times);
    counted.clear();
  }

  Tensor weight, ids, targets;
  testing::OperatorCounts counted;
};

TEST_F(TiedGradient, IsAddedToInPlace) {
  const auto expected = torch::autograd::grad({plain_loss()}, {weight})[0];
  expect_in_place(0);
  const auto loss = tied_loss();
  const auto found = torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true)[0];
  expect_in_place(1);
  EXPECT_EQ(counted["levin::embedding_backward"], 0);
  EXPECT_TRUE(torch::allclose(found, expected, 1e-12));
  EXPECT_TRUE(torch::allclose(torch::autograd::grad({loss}, {weight})[0], expected, 1e-12));
  expect_in_place(1);
}

TEST_F(TiedGradient, GrowsFromStepToStep) {
  plain_loss().backward();
  const auto expected = weight.grad() * 3;
  weight.mutable_grad().reset();
  for (int step = 0; step < 3; ++step) tied_loss().backward();
  expect_in_place(3);
  EXPECT_TRUE(torch::allclose(weight.grad(), expected, 1e-12));
}

/// Hooks of a leaf see the sum.
TEST_F(TiedGradient, ComesToHooksWhole) {
  const auto expected = torch::autograd::grad({plain_loss()}, {weight})[0];
  Tensor seen;
  int times = 0;
  weight.register_hook([&](const Tensor& grad) { seen = grad.clone(), ++times; });
  tied_loss().backward();
  expect_in_place(1);
  EXPECT_EQ(times, 1);
  EXPECT_TRUE(torch::allclose(seen, expected, 1e-12));
}

TEST_F(TiedGradient, OfAHeadOfItsOwnStaysAlone) {
  const auto head = torch::randn({kRows, kColumns}, at::kDouble).requires_grad_();
  const auto found = torch::autograd::grad({loss(fused_embedding(weight, ids, -1), head)}, {weight, head});
  expect_in_place(0);
  const auto expected = torch::autograd::grad({loss(at::embedding(weight, ids), head)}, {weight, head});
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-12));
}

/// A third layer has given its part before: what waits is a sum.
TEST_F(TiedGradient, OfThreeLayersIsTheirSum) {
  const auto with = [&](const auto& embed) {
    const auto embedded = embed();
    return loss(embedded + at::linear(embedded, weight.t().mm(weight)), weight) + embedded.square().mean();
  };
  const auto found = torch::autograd::grad({with([&] { return fused_embedding(weight, ids, -1); })}, {weight})[0];
  const auto expected = torch::autograd::grad({with([&] { return at::embedding(weight, ids); })}, {weight})[0];
  EXPECT_TRUE(torch::allclose(found, expected, 1e-10));
}

/// The weight itself is a result, and its gradient is one of many on the way.
TEST_F(TiedGradient, OfAComputedWeightIsAddedToInPlace) {
  const auto of = [&](bool fused) {
    const auto doubled = weight * 2;
    return torch::autograd::grad(
        {loss(fused ? fused_embedding(doubled, ids, -1) : at::embedding(doubled, ids), doubled)}, {weight})[0];
  };
  const auto expected = of(false), found = of(true);
  expect_in_place(1);
  EXPECT_TRUE(torch::allclose(found, expected, 1e-12));
}

/// Keeps the gradient that the loss gives for the head.
struct KeepGradient : torch::autograd::FunctionPostHook {
  explicit KeepGradient(Tensor& to) : kept(to) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    kept = outputs[1];
    return outputs;
  }
  Tensor& kept;
};

TEST_F(TiedGradient, IsNotChangedWhereSomebodyHasIt) {
  const auto expected = torch::autograd::grad({plain_loss()}, {weight})[0];
  const auto of_head = torch::autograd::grad({loss(at::embedding(weight.detach(), ids), weight)}, {weight})[0];
  Tensor kept;
  const auto loss = tied_loss();
  loss.grad_fn()->add_post_hook(std::make_unique<KeepGradient>(kept));
  const auto found = torch::autograd::grad({loss}, {weight})[0];
  expect_in_place(0);
  EXPECT_TRUE(torch::allclose(found, expected, 1e-12));
  EXPECT_TRUE(torch::allclose(kept, of_head, 1e-12));
}

}  // namespace
}  // namespace levin::tied_gradient_tests
