#include "levin/nn/torch_linear.h"

#include <ATen/ops/addmm_ops.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "levin/kernels/played_device.h"
#include "levin/precision/precision.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/probe.h"
#include "levin/testing/process.h"

namespace {

using levin::testing::OperatorCounts;

TEST(TorchLinear, AddsTheBiasInTheProductUnderAutocast) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Linear(16, 4));
  const auto x = torch::randn({2, 3, 8});
  const levin::Autocast autocast(c10::kCPU, c10::kBFloat16);
  const OperatorCounts counts;
  const auto y = net->forward(x);
  EXPECT_GT(counts["aten::linear"], 0);
  EXPECT_EQ(counts["aten::add_"], 0);
  auto* first = net[0]->as<torch::nn::LinearImpl>();
  auto* second = net[1]->as<torch::nn::LinearImpl>();
  EXPECT_TRUE(torch::equal(y, at::linear(at::linear(x, first->weight, first->bias), second->weight, second->bias)));
}

// Programs that were converted give the losses that they gave.
TEST(TorchLinear, IsThatOfLibTorchInFloat32OnTheCpu) {
  torch::manual_seed(1);
  torch::nn::Linear layer(8, 16);
  const auto x = torch::randn({2, 3, 8});
  EXPECT_TRUE(torch::equal(layer(x), torch::nn::functional::linear(x, layer->weight, layer->bias)));
}

TEST(TorchLinear, HasTheGradientsOfTheOperatorWithAndWithoutBias) {
  for (const bool bias : {true, false}) {
    torch::manual_seed(1);
    torch::nn::Linear layer(torch::nn::LinearOptions(8, 16).bias(bias));
    const auto x = torch::randn({2, 3, 8});
    const levin::Autocast autocast(c10::kCPU, c10::kBFloat16);
    layer(x).sum().backward();
    const auto weight = layer->weight.detach().requires_grad_(),
               of_bias = bias ? layer->bias.detach().requires_grad_() : torch::Tensor();
    at::linear(x, weight, of_bias).sum().backward();
    EXPECT_TRUE(torch::equal(layer->weight.grad(), weight.grad()));
    if (bias) EXPECT_TRUE(torch::equal(layer->bias.grad(), of_bias.grad()));
  }
}

LEVIN_PROBE(torch_linear_of_libtorch) {
  EXPECT_FALSE(levin::nn::replaces_torch_linear());
  levin::nn::hint_at_torch_linear(*torch::nn::Sequential(torch::nn::Linear(8, 4)));
  levin::nn::hint_at_torch_linear(*torch::nn::Sequential(torch::nn::ReLU()));
  // It computes as LibTorch does.
  const levin::Autocast autocast(c10::kCPU, c10::kBFloat16);
  const OperatorCounts counts;
  torch::nn::Linear(8, 16)(torch::randn({2, 3, 8}));
  EXPECT_GT(counts["aten::add_"], 0);
}

TEST(TorchLinear, IsThatOfLibTorchWhereItIsLinkedFirstAndALineSaysSo) {
  EXPECT_TRUE(levin::nn::replaces_torch_linear());
  Dl_info torch{};
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&at::_ops::addmm::call), &torch), 0);
  const auto run = levin::testing::run_program(levin::testing::probe_command("torch_linear_of_libtorch"),
                                               {std::string("LD_PRELOAD=") + torch.dli_fname});
  EXPECT_EQ(run.status, 0) << run.text();
  EXPECT_THAT(run.err, testing::HasSubstr("this program links LibTorch before Levin"));
}

// An estimate of memory plays the step of the device that it is asked about.
TEST(TorchLinear, IsPlayedAsTheDeviceComputesIt) {
  torch::nn::Linear layer(8, 16);
  layer->weight = torch::empty({16, 8}, c10::kMeta), layer->bias = torch::empty({16}, c10::kMeta);
  levin::kernels::set_played_device(c10::kCUDA);
  const OperatorCounts counts;
  layer(torch::randn({2, 3, 8}, c10::kMeta));
  levin::kernels::set_played_device(c10::kCPU);
  EXPECT_EQ(counts["aten::add_"], 0);
  EXPECT_EQ(counts["aten::addmm"], 1);
}

}  // namespace
