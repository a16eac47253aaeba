// residual_norm on the CPU: equal to torch's layers, and the operators that CUDA has kernels for.
#include "levin/kernels/norm/residual_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/kernels/norm/residual_norm_detail.h"
#include "levin/kernels/played_device.h"
#include "levin/nn/residual_norm.h"
#include "levin/nn/saved_tensors.h"
#include "levin/precision/precision.h"
#include "levin/testing/error_of.h"
#include "levin/testing/gradients.h"
#include "levin/testing/tensors.h"

namespace levin::kernels {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using testing::same_bytes;

Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return torch::randn(sizes).to(dtype).set_requires_grad(true);
}

TEST(ResidualNorm, IsTorchsOnTheCpu) {
  for (const bool rms : {false, true})
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      torch::manual_seed(3);
      const std::vector<Tensor> mine{leaf({2, 5, 12}, dtype), leaf({2, 5, 12}, dtype), leaf({12}, dtype),
                                     leaf({12}, dtype)};
      std::vector<Tensor> theirs;
      for (const auto& each : mine) theirs.push_back(each.detach().clone().set_requires_grad(true));
      const auto [output, h] = residual_norm(mine[0], mine[1], mine[2], rms ? Tensor() : mine[3], 1e-5, rms);
      const auto sum = theirs[0] + theirs[1];
      const auto norm =
          rms ? at::rms_norm(sum, {12}, theirs[2], 1e-5) : at::layer_norm(sum, {12}, theirs[2], theirs[3], 1e-5);
      EXPECT_TRUE(same_bytes(output, norm));
      EXPECT_TRUE(same_bytes(h, sum));
      (output.square().sum() + h.sin().sum()).backward();
      (norm.square().sum() + sum.sin().sum()).backward();
      for (size_t i = 0; i < (rms ? 3u : 4u); ++i) EXPECT_TRUE(same_bytes(mine[i].grad(), theirs[i].grad())) << i;
    }
}

TEST(ResidualNorm, UnderAutocastOnTheCpuToo) {
  const auto stream = torch::randn({4, 12}), branch = torch::randn({4, 12}).to(at::kBFloat16);
  const auto weight = torch::randn({12}), bias = torch::randn({12});
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto [output, h] = residual_norm(stream, branch, weight, bias, 1e-5, false);
  EXPECT_TRUE(same_bytes(output, at::layer_norm(stream + branch, {12}, weight, bias, 1e-5)));
  EXPECT_EQ(h.scalar_type(), at::kFloat);
}

TEST(ResidualNorm, DropsOnlyTheBranch) {
  torch::manual_seed(5);
  const auto stream = torch::zeros({50, 40}), branch = torch::ones({50, 40}).set_requires_grad(true);
  const auto h = residual_norm(stream, branch, torch::ones({40}), {}, 1e-5, true, 0.25).stream;
  const auto dropped = h.eq(0).to(at::kFloat).mean().item<double>();
  EXPECT_NEAR(dropped, 0.25, 0.05);
  h.sum().backward();
  EXPECT_TRUE(torch::equal(branch.grad(), h));
}

// What the operators' autograd does is the same on every device; the CPU's kernels are in double here.
struct Case {
  bool rms, branch, bias;
};

TEST(ResidualNormOperator, GradientsAreThoseOfDifferences) {
  torch::manual_seed(7);
  for (const auto& c : {Case{false, true, true}, Case{false, false, true}, Case{true, true, false},
                        Case{true, false, true}, Case{false, true, false}}) {
    std::vector<Tensor> inputs{torch::randn({3, 2, 5}, at::kDouble), torch::randn({5}, at::kDouble)};
    if (c.branch) inputs.push_back(torch::randn({3, 2, 5}, at::kDouble));
    if (c.bias) inputs.push_back(torch::randn({5}, at::kDouble));
    const auto along = torch::randn({3, 2, 5}, at::kDouble), across = torch::randn({3, 2, 5}, at::kDouble);
    for (const int used : {1, 2, 3}) {  // the output, the stream, both
      const auto f = [&](const std::vector<Tensor>& in) {
        const auto [output, h] = detail::fused_residual_norm(
            in[0], c.branch ? in[2] : Tensor(), in[1], c.bias ? in.back() : Tensor(), 1e-3, c.rms, 0, at::kDouble);
        auto loss = at::zeros({}, at::kDouble);
        if (used & 1) loss = loss + (output * along + output.square()).sum();
        if (used & 2) loss = loss + (h * across + h.square()).sum();
        return loss;
      };
      EXPECT_LT(testing::gradient_error(f, inputs), 1e-6) << c.rms << c.branch << c.bias << used;
      if (used == 3) {
        EXPECT_LT(testing::second_gradient_error(f, inputs), 1e-3) << c.rms << c.branch << c.bias;
      }
    }
  }
}

TEST(ResidualNormOperator, WithoutABranchTheStreamIsNotCopied) {
  const auto stream = leaf({4, 6}), weight = leaf({6});
  const auto [output, h] = detail::fused_residual_norm(stream, {}, weight, {}, 1e-5, false, 0, at::kFloat);
  EXPECT_EQ(h.const_data_ptr(), stream.const_data_ptr());
  (output.sum() + h.sum()).backward();
  const auto copy = stream.detach().clone().set_requires_grad(true), factor = weight.detach();
  (at::layer_norm(copy, {6}, factor, {}, 1e-5).sum() + copy.sum()).backward();
  EXPECT_TRUE(torch::allclose(stream.grad(), copy.grad(), 1e-5, 1e-5));
}

TEST(ResidualNormOperator, MixedDtypes) {
  const auto stream = leaf({8, 6}), branch = leaf({8, 6}, at::kBFloat16), weight = leaf({6});
  const auto bias = leaf({6}, at::kBFloat16);
  const auto [output, h] = detail::fused_residual_norm(stream, branch, weight, bias, 1e-5, false, 0, at::kBFloat16);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(h.scalar_type(), at::kFloat);
  (output.to(at::kFloat).square().sum() + h.sum()).backward();
  EXPECT_EQ(branch.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(bias.grad().scalar_type(), at::kBFloat16);
  EXPECT_TRUE(torch::allclose(stream.grad(), branch.grad().to(at::kFloat), 1e-2, 1e-2));
}

TEST(ResidualNormOperator, FrozenWeightsGetNoGradient) {
  const auto stream = leaf({4, 6}), weight = torch::ones({6});
  const auto bias = leaf({6});
  const auto output = detail::fused_residual_norm(stream, {}, weight, bias, 1e-5, false, 0, at::kFloat).output;
  output.sum().backward();
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_TRUE(torch::allclose(bias.grad(), torch::full({6}, 4.0f)));
}

/// Meta tensors stand for those of a GPU.
struct PlaysCuda {
  PlaysCuda() { set_played_device(at::kCUDA); }
  ~PlaysCuda() {
    set_played_device(at::kCPU);
    set_played_autocast(nullptr);
  }
};

TEST(ResidualNormOperator, KeepsTheStreamAndTheStatistics) {
  const PlaysCuda cuda;
  const auto meta = at::TensorOptions().device(at::kMeta);
  const auto stream = torch::empty({16, 64}, meta).set_requires_grad(true);
  const auto branch = torch::empty({16, 64}, meta.dtype(at::kBFloat16)).set_requires_grad(true);
  const auto weight = torch::empty({64}, meta).set_requires_grad(true);
  SavedBytes saved;
  saved.ignore(weight);
  const PlayedAutocast autocast{at::kBFloat16, [](const Tensor& tensor) { return tensor.to(at::kBFloat16); }};
  set_played_autocast(&autocast);
  const auto [output, h] = residual_norm(stream, branch, weight, {}, 1e-5, false);
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(h.scalar_type(), at::kFloat);
  EXPECT_EQ(saved.bytes(), 16 * 64 * 4 + 2 * 16 * 4);
  torch::autograd::backward({output, h}, {torch::empty_like(output), torch::empty_like(h)});
  EXPECT_EQ(branch.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(weight.grad().sizes(), weight.sizes());
}

TEST(ResidualNorm, SaysWhatDoesNotFit) {
  const auto x = torch::ones({2, 4});
  EXPECT_THAT(error_of([&] { residual_norm(x, {}, torch::ones({5}), {}, 1e-5, false); }), HasSubstr("weight [C]"));
  EXPECT_THAT(error_of([&] { residual_norm(x, x[0], torch::ones({4}), {}, 1e-5, false); }),
              HasSubstr("they must be equal"));
  EXPECT_THAT(error_of([&] { residual_norm(x, x, torch::ones({4}), {}, 1e-5, false, 2); }), HasSubstr("dropout 2"));
}

TEST(ResidualNormLayer, HasTheParametersOfLayerNorm) {
  nn::ResidualNorm norm(nn::ResidualNormOptions{.size = 6, .eps = 1e-6});
  const auto x = torch::randn({3, 6}), y = torch::randn({3, 6});
  torch::nn::LayerNorm theirs(torch::nn::LayerNormOptions({6}).eps(1e-6));
  EXPECT_TRUE(same_bytes(std::get<0>(norm(x)), theirs(x)));
  EXPECT_TRUE(same_bytes(std::get<0>(norm(x, y)), theirs(x + y)));
  EXPECT_THAT(norm->named_parameters().keys(), ::testing::ElementsAre("weight", "bias"));
  EXPECT_FALSE(nn::ResidualNorm(nn::ResidualNormOptions{.size = 6, .rms = true, .bias = false})->bias.defined());
  norm->eval();
  EXPECT_TRUE(same_bytes(std::get<1>(norm(x, y, 0.5)), x + y)) << "nothing is dropped outside of training";
  std::ostringstream text;
  text << norm;
  EXPECT_EQ(text.str(), "levin::nn::ResidualNorm(6, eps=1e-06, rms=false, bias=true)");
}

}  // namespace
}  // namespace levin::kernels
