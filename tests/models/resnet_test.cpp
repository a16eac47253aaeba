#include "levin/models/resnet.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/models/registry.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/nn/policy.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

using testing::error_of;

models::ResNetOptions short_resnet(bool bottleneck = false) {
  return {.layers = {1, 1, 1, 1}, .bottleneck = bottleneck, .num_classes = 5};
}

TEST(ResNet, BlocksAreUnitsAndFire) {
  auto options = short_resnet(true);
  options.layers = {1, 2, 1, 1};
  auto model = models::resnet(options);
  const auto units = select_units(*model, policy::by_class<models::Bottleneck>());
  ASSERT_EQ(units.size(), 5u);
  EXPECT_EQ(units[2].name, "layer2.1");
  FiredCheck check("fsdp", select_units(*model, policy::all_units()));
  model(torch::randn({2, 3, 32, 32}));
  check.finish();
}

TEST(ResNet, EvaluationUsesAndKeepsTheRunningStatistics) {
  auto model = models::resnet(short_resnet());
  torch::NoGradGuard no_grad;
  const auto images = torch::randn({4, 3, 32, 32}) + 1;
  const auto trained = model(images);
  EXPECT_EQ(model->bn1->num_batches_tracked.item<int64_t>(), 1);
  const auto moved = model->bn1->running_mean.clone();
  EXPECT_GT(moved.abs().max().item<double>(), 0);
  model->eval();
  const auto evaluated = model(images);
  EXPECT_FALSE(torch::allclose(trained, evaluated, 1e-3, 1e-3));
  EXPECT_TRUE(torch::equal(moved, model->bn1->running_mean));
  // Without the batch's own statistics an image does not depend on its neighbours.
  EXPECT_TRUE(torch::allclose(model(images.narrow(0, 1, 1)), evaluated.narrow(0, 1, 1), 1e-4, 1e-5));
}

TEST(ResNet, ChannelsLastGivesTheSameNumbers) {
  for (const bool bottleneck : {false, true}) {
    torch::manual_seed(1);
    auto plain = models::resnet(short_resnet(bottleneck));
    torch::manual_seed(1);
    auto last = models::resnet(short_resnet(bottleneck));
    // In double: in float a ReLU near zero may be open on one side and shut on the other.
    plain->to(at::kDouble), last->to(at::kDouble);
    models::to_channels_last(*last);
    EXPECT_TRUE(last->conv1->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_FALSE(last->conv1->weight.is_contiguous());
    const auto images = torch::randn({4, 3, 64, 64}, at::kDouble);
    const auto labels = torch::tensor({0, 3, 1, 4});
    const auto expected = plain(images), found = last(images.contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(torch::allclose(expected, found, 1e-8, 1e-9));
    cross_entropy(expected, labels).backward();
    cross_entropy(found, labels).backward();
    const auto a = plain->named_parameters(), b = last->named_parameters();
    for (const auto& item : a) {
      const auto difference = (item.value().grad() - b[item.key()].grad()).norm() / item.value().grad().norm();
      EXPECT_LT(difference.item<double>(), 1e-8) << item.key();
    }
  }
}

TEST(ResNet, LargeBatchesOnTheCpuAreChannelsLast) {
  const auto format = at::MemoryFormat::ChannelsLast;
  if (at::get_cpu_capability() != "AVX512") GTEST_SKIP() << "this CPU has no AVX-512";
  const auto images = torch::randn({16, 3, 128, 128}), fewer = images.narrow(0, 0, 15), few = images.narrow(0, 0, 4);
  EXPECT_TRUE(nn::channels_last_where_faster(images).is_contiguous(format));
  EXPECT_TRUE(nn::channels_last_where_faster(fewer).is_same(fewer)) << "small batches";
  const auto small = torch::randn({64, 3, 64, 64});
  EXPECT_TRUE(nn::channels_last_where_faster(small).is_same(small)) << "small images";
  EXPECT_TRUE(nn::channels_last_where_faster(few, /*mostly_pointwise=*/true).is_contiguous(format));
  EXPECT_TRUE(nn::channels_last_where_faster(few.narrow(0, 0, 3), true).is_contiguous()) << "small batches";
  for (const auto dtype : {at::kDouble, at::kBFloat16})
    EXPECT_TRUE(nn::channels_last_where_faster(images.to(dtype)).is_contiguous()) << dtype;
  const auto last = images.contiguous(format);
  EXPECT_EQ(nn::channels_last_where_faster(last).data_ptr(), last.data_ptr()) << "no second copy";

  const auto run = [&](bool channels_last) {
    auto options = short_resnet();
    options.channels_last = channels_last;
    torch::manual_seed(1);
    auto model = models::resnet(options);
    const auto logits = model(images);
    logits.square().sum().backward();
    for (const auto& parameter : model->parameters())
      EXPECT_TRUE(parameter.is_contiguous() && parameter.grad().is_contiguous()) << "they stay as they lie";
    return std::pair(logits.detach(), model->layer4->parameters()[0].grad());
  };
  const auto [logits, gradient] = run(true);
  const auto [expected, expected_gradient] = run(false);
  EXPECT_TRUE(torch::allclose(logits, expected, 1e-4, 1e-4));
  // A ReLU near zero may be open on one side and shut on the other: that changes a gradient by a percent or two.
  EXPECT_LT(((gradient - expected_gradient).norm() / expected_gradient.norm()).item<double>(), 0.1);
}

TEST(ResNet, SmallImagesKeepTheirResolutionInTheFirstStage) {
  auto options = short_resnet();
  options.small_images = true;
  auto model = models::resnet(options);
  model->eval();
  EXPECT_EQ(model->conv1->weight.size(2), 3);
  EXPECT_EQ(model->layer1->forward(model->bn1(model->conv1(torch::randn({1, 3, 32, 32})))).size(2), 32);
  EXPECT_EQ(model(torch::randn({2, 3, 32, 32})).size(1), 5);
}

TEST(ResNet, WrongOptionsAndImagesAreOneLine) {
  EXPECT_EQ(error_of([] { models::resnet({.bottleneck = false, .groups = 2}); }),
            "[resnet] groups, width_per_group and replace_stride_with_dilation need bottleneck blocks");
  EXPECT_EQ(error_of([] {
              models::resnet18({.replace_stride_with_dilation = {true, false, false}});
            }),
            "[resnet] groups, width_per_group and replace_stride_with_dilation need bottleneck blocks");
  EXPECT_EQ(error_of([] {
              models::resnet({.layers = {1, 0, 1, 1}});
            }),
            "[resnet] each of the four stages needs a block; layers has 0");
  auto model = models::resnet(short_resnet());
  EXPECT_EQ(error_of([&] {
              model(torch::randn({2, 1, 32, 32}));
            }),
            "[resnet] images must be [B, 3, H, W], got [2, 1, 32, 32]");
}

TEST(ReplaceHead, KeepsAllButTheLastLayer) {
  const models::VisionTransformer vit = models::vit({.image_size = 16,
                                                     .patch_size = 8,
                                                     .num_layers = 1,
                                                     .num_heads = 2,
                                                     .hidden_dim = 8,
                                                     .mlp_dim = 16,
                                                     .num_classes = 5});
  const models::ResNet resnet = models::resnet(short_resnet());
  for (const auto& [model, head, side] :
       {std::tuple{models::ImageModel(vit), "heads.head", 16}, {models::ImageModel(resnet), "fc", 32}}) {
    model.ptr()->to(torch::kDouble);
    const auto before = model->named_parameters();
    replace_head(model, 3);
    EXPECT_EQ(model->num_classes(), 3);
    const auto after = model->named_parameters();
    EXPECT_EQ(after.keys(), before.keys());
    for (const auto& item : after) {
      const bool of_head = item.key().starts_with(head);
      EXPECT_EQ(item.value().is_same(before[item.key()]), !of_head) << item.key();
      EXPECT_EQ(item.value().scalar_type(), torch::kDouble);
    }
    EXPECT_EQ(model(torch::randn({2, 3, side, side}, torch::kDouble)).sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(error_of([&, &m = model] { replace_head(m, 0); }), "[replace_head] num_classes must be positive, got 0");
  }
}

TEST(ImageModel, RunsTheInterceptorsOfTheModelItHolds) {
  const auto held = models::resnet(short_resnet());
  const models::ImageModel model = held;
  struct Owner : torch::nn::Module {};
  auto owner = std::make_shared<Owner>();
  owner->register_module("model", held);
  FiredCheck check("fsdp", select_units(*owner, policy::by_class<models::ResNet>()));
  model(torch::randn({2, 3, 32, 32}));
  check.finish();
}

}  // namespace
}  // namespace levin
