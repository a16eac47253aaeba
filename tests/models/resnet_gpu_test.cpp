// Residual networks on the GPU, channels-last and fused, against the CPU. Skipped where there is none.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/max_pool.h"
#include "levin/models/resnet.h"
#include "levin/nn/functional.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

class ResNetOnCuda : public testing::GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    at::globalContext().setAllowTF32CuDNN(false);
  }
  void TearDown() override { at::globalContext().setAllowTF32CuDNN(true); }
};

models::ResNet short_resnet(bool bottleneck) {
  torch::manual_seed(1);
  return models::resnet({.layers = {1, 2, 1, 1}, .bottleneck = bottleneck, .num_classes = 5});
}

double apart(const Tensor& found, const Tensor& expected) {
  const auto a = found.detach().cpu().to(at::kDouble), b = expected.detach().cpu().to(at::kDouble);
  return ((a - b).norm() / (b.norm() + 1e-12)).item<double>();
}

struct Autocast {
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16);
  }
  ~Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }
};

TEST_F(ResNetOnCuda, AgreesWithTheCpu) {
  for (const bool bottleneck : {false, true}) {
    auto here = short_resnet(bottleneck), there = short_resnet(bottleneck);
    there->to(at::kCUDA);
    const auto images = torch::randn({16, 3, 64, 64});
    const auto labels = torch::randint(5, {16});
    const auto expected = here(images), found = there(images.cuda());
    EXPECT_LT(apart(found, expected), 1e-4);
    cross_entropy(expected, labels).backward();
    cross_entropy(found, labels.cuda()).backward();
    const auto a = there->named_parameters(), b = here->named_parameters();
    for (const auto& item : a) {
      EXPECT_LT(apart(item.value().grad(), b[item.key()].grad()), 5e-3) << item.key();
      EXPECT_TRUE(item.value().is_contiguous()) << item.key();
    }
    const auto c = there->named_buffers(), d = here->named_buffers();
    for (const auto& item : c) EXPECT_LT(apart(item.value(), d[item.key()]), 1e-4) << item.key();
    here->eval(), there->eval();
    EXPECT_LT(apart(there(images.cuda()), here(images)), 1e-3);
  }
}

TEST_F(ResNetOnCuda, RunsChannelsLastUnasked) {
  auto model = short_resnet(true);
  model->to(at::kCUDA);
  const auto x = torch::randn({4, 64, 16, 16}, at::kCUDA).contiguous(at::MemoryFormat::ChannelsLast);
  const auto y = model->layer1->forward(x);
  EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_NE(y.grad_fn()->name().find("BatchNormAct"), std::string::npos) << y.grad_fn()->name();
  const auto pooled = kernels::max_pool2d(y, {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
  EXPECT_NE(pooled.grad_fn()->name().find("FusedMaxPool"), std::string::npos) << pooled.grad_fn()->name();
  EXPECT_TRUE(pooled.is_contiguous(at::MemoryFormat::ChannelsLast));
  const auto grad = torch::autograd::grad({pooled.sum()}, {y})[0];
  EXPECT_TRUE(grad.is_contiguous(at::MemoryFormat::ChannelsLast));
}

/// The model by torch's own operators.
Tensor by_torch(models::ResNetImpl& model, const Tensor& images) {
  const auto conv = [](nn::Conv2d& layer, const Tensor& x) { return layer->torch::nn::Conv2dImpl::forward(x); };
  const auto norm = [](nn::BatchNorm2d& layer, const Tensor& x) {
    return layer->torch::nn::BatchNorm2dImpl::forward(x);
  };
  auto x = at::max_pool2d(norm(model.bn1, conv(model.conv1, images)).relu(), 3, 2, 1);
  for (auto* stage : {&model.layer1, &model.layer2, &model.layer3, &model.layer4})
    for (const auto& each : **stage) {
      auto& block = *each.ptr()->as<models::BottleneckImpl>();
      auto y = norm(block.bn1, conv(block.conv1, x)).relu();
      y = norm(block.bn2, conv(block.conv2, y)).relu();
      y = norm(block.bn3, conv(block.conv3, y));
      if (block.downsample) {
        auto* first = block.downsample->ptr(0)->as<torch::nn::Conv2dImpl>();
        auto* second = block.downsample->ptr(1)->as<torch::nn::BatchNorm2dImpl>();
        x = second->torch::nn::BatchNorm2dImpl::forward(first->torch::nn::Conv2dImpl::forward(x));
      }
      x = (y + x).relu();
    }
  return at::linear(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1), model.fc->weight, model.fc->bias);
}

TEST_F(ResNetOnCuda, AutocastIsAsNearFloat32AsTorchsAndLeavesTheWeightsAsTheyLie) {
  auto model = short_resnet(true);
  model->to(at::kCUDA);
  const auto images = torch::randn({16, 3, 64, 64}, at::kCUDA);
  const auto labels = torch::randint(5, {16}, torch::dtype(at::kLong).device(at::kCUDA));
  const auto expected = model(images);
  const auto gradients = [&](const Tensor& logits) {
    model->zero_grad();
    cross_entropy(logits.to(at::kFloat), labels).backward();
    std::vector<Tensor> grads;
    for (const auto& parameter : model->parameters()) grads.push_back(parameter.grad().clone());
    return grads;
  };
  const auto of_float = gradients(expected);
  const auto with_autocast = [](const auto& forward) {
    const Autocast autocast;
    return forward();
  };
  const auto theirs = with_autocast([&] { return by_torch(*model, images); });
  const auto of_theirs = gradients(theirs);
  const auto mine = with_autocast([&] { return model(images); });
  const auto of_mine = gradients(mine);
  EXPECT_EQ(mine.scalar_type(), at::kBFloat16);
  EXPECT_LT(apart(mine, expected), 1.2 * apart(theirs, expected) + 0.01);
  // Batch norms over few values make rounding to 16 bits large in the gradients of all layers below, also in torch.
  double of_all_mine = 0, of_all_theirs = 0;
  const auto parameters = model->named_parameters();
  for (size_t i = 0; i < of_mine.size(); ++i) {
    const auto& name = parameters[i].key();
    const auto& parameter = parameters[i].value();
    EXPECT_TRUE(parameter.is_contiguous()) << name;
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(parameter.grad().is_contiguous()) << name;
    const auto here = apart(of_mine[i], of_float[i]), there = apart(of_theirs[i], of_float[i]);
    EXPECT_LT(here, 2 * there + 0.01) << name;
    of_all_mine += here, of_all_theirs += there;
  }
  EXPECT_LT(of_all_mine, 1.2 * of_all_theirs);
}

TEST_F(ResNetOnCuda, ChannelsLastWeightsGiveTheSame) {
  auto plain = short_resnet(true), last = short_resnet(true);
  plain->to(at::kCUDA), last->to(at::kCUDA);
  models::to_channels_last(*last);
  const auto images = torch::randn({16, 3, 64, 64}, at::kCUDA);
  EXPECT_LT(apart(last(images), plain(images)), 1e-4);
}

}  // namespace
}  // namespace levin
