// Activations on the CPU: torch's own, and the operators that CUDA has kernels for.
#include "levin/kernels/activation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/kernels/activation_detail.h"
#include "levin/kernels/played_device.h"
#include "levin/nn/saved_tensors.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gradients.h"
#include "levin/testing/tensors.h"

namespace levin::kernels {
namespace {

using ::testing::HasSubstr;
using testing::same_bytes;
using Plain = std::function<Tensor(const Tensor&)>;

const std::vector<std::pair<Activation, Plain>>& kinds() {
  static const std::vector<std::pair<Activation, Plain>> all{
      {Activation::kGelu, [](const Tensor& x) { return at::gelu(x); }},
      {Activation::kGeluTanh, [](const Tensor& x) { return at::gelu(x, "tanh"); }},
      {Activation::kRelu, [](const Tensor& x) { return at::relu(x); }},
      {Activation::kSilu, [](const Tensor& x) { return at::silu(x); }}};
  return all;
}

TEST(Activation, IsTorchsOnTheCpu) {
  for (const auto& [kind, plain] : kinds()) {
    const auto x = torch::randn({7, 11}).set_requires_grad(true), y = x.detach().clone().set_requires_grad(true);
    const auto mine = activation(x, kind), theirs = plain(y), fused = detail::fused_activation(x.detach(), kind);
    EXPECT_TRUE(same_bytes(mine, theirs));
    EXPECT_TRUE(same_bytes(fused, theirs));
    mine.square().sum().backward();
    theirs.square().sum().backward();
    EXPECT_TRUE(same_bytes(x.grad(), y.grad()));
  }
}

TEST(Activation, OneThatNobodyKnowsIsNotSilu) {
  EXPECT_EQ(kinds().size(), static_cast<size_t>(detail::ActivationKind::kGatedSilu));  // a row of each
  const auto unknown = static_cast<Activation>(99);
  const auto x = at::ones({2, 8});
  EXPECT_THAT(testing::error_of([&] { activation(x, unknown); }), HasSubstr("unknown kind"));
  EXPECT_THAT(testing::error_of([&] { detail::run_activation_backward(x, x, unknown); }), HasSubstr("unknown kind"));
  for (size_t i = 0; i < kinds().size(); ++i) EXPECT_TRUE(detail::is_activation(static_cast<int64_t>(i)));
  EXPECT_FALSE(detail::is_activation(-1) || detail::is_activation(static_cast<int64_t>(kinds().size())));
}

TEST(Activation, GradientsAreThoseOfDifferences) {
  for (const auto& [kind, plain] : kinds()) {
    const auto f = [kind = kind](const std::vector<Tensor>& in) {
      return detail::fused_activation(in[0], kind).square().sum();
    };
    const std::vector<Tensor> inputs{torch::linspace(-3, 3, 16, at::kDouble)};
    EXPECT_LT(testing::gradient_error(f, inputs), 1e-7) << static_cast<int>(kind);
    EXPECT_LT(testing::second_gradient_error(f, inputs), 1e-4) << static_cast<int>(kind);
  }
}

TEST(Activation, GatedSilu) {
  const std::vector<Tensor> inputs{torch::randn({3, 4}, at::kDouble), torch::randn({3, 4}, at::kDouble)};
  EXPECT_TRUE(same_bytes(gated_silu(inputs[0], inputs[1]), at::silu(inputs[0]) * inputs[1]));
  const auto f = [](const std::vector<Tensor>& in) { return detail::fused_gated_silu(in[0], in[1]).square().sum(); };
  EXPECT_LT(testing::gradient_error(f, inputs), 1e-7);
  EXPECT_LT(testing::second_gradient_error(f, inputs), 1e-4);
  EXPECT_THAT(testing::error_of([&] { gated_silu(inputs[0], inputs[1][0]); }), HasSubstr("they must be equal"));
}

TEST(Activation, GatedSiluKeepsItsInputsAlone) {
  set_played_device(at::kCUDA);
  const auto gate = torch::empty({8, 16}, at::kMeta).set_requires_grad(true);
  const auto up = torch::empty({8, 16}, at::kMeta).set_requires_grad(true);
  SavedBytes saved;
  const auto out = gated_silu(gate, up);
  set_played_device(at::kCPU);
  EXPECT_EQ(saved.bytes(), 2 * 8 * 16 * 4);
  out.sum().backward();
  EXPECT_EQ(up.grad().sizes(), up.sizes());
}

}  // namespace
}  // namespace levin::kernels
