#include "levin/models/vit.h"

#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/functional.h"
#include "levin/nn/policy.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

using testing::error_of;

const std::string kFixtures = levin::testing::source_dir() + "/tests/models/fixtures/";

template <class T>
T read(std::istream& in) {
  T value{};
  in.read(reinterpret_cast<char*>(&value), sizeof value);
  return value;
}

std::map<std::string, Tensor> read_tensors(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::map<std::string, Tensor> tensors;
  while (in.peek() != EOF) {
    std::string name(read<uint32_t>(in), ' ');
    in.read(name.data(), static_cast<std::streamsize>(name.size()));
    std::vector<int64_t> sizes(read<uint32_t>(in));
    for (auto& size : sizes) size = read<int64_t>(in);
    auto tensor = torch::empty(sizes);
    in.read(static_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    tensors[name] = tensor;
  }
  return tensors;
}

models::ViTOptions tiny() {
  return {.image_size = 16,
          .patch_size = 8,
          .num_layers = 2,
          .num_heads = 2,
          .hidden_dim = 8,
          .mlp_dim = 16,
          .num_classes = 5};
}

TEST(ViT, StartsFromTorchvisionsNumbers) {
  const auto fixture = read_tensors(kFixtures + "vit_tiny.bin");
  torch::manual_seed(7);
  auto model = models::vit(tiny());
  size_t compared = 0;
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(fixture.contains("init." + item.key())) << item.key();
    EXPECT_TRUE(torch::allclose(item.value(), fixture.at("init." + item.key()), 1e-6, 1e-7)) << item.key();
    ++compared;
  }
  EXPECT_EQ(compared, 2u * 12 + 8);
}

TEST(ViT, OutputsAndGradientsAreTorchvisions) {
  const auto fixture = read_tensors(kFixtures + "vit_tiny.bin");
  auto model = models::vit(tiny());
  {
    torch::NoGradGuard no_grad;
    for (auto& item : model->named_parameters()) item.value().copy_(fixture.at("param." + item.key()));
  }
  const auto logits = model(fixture.at("images"));
  EXPECT_TRUE(torch::allclose(logits, fixture.at("logits"), 1e-5, 1e-5));
  cross_entropy(logits, fixture.at("target").to(at::kLong), {.label_smoothing = 0.1}).backward();
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(torch::allclose(item.value().grad(), fixture.at("grad." + item.key()), 1e-5, 1e-5)) << item.key();
}

/// Whatever a row of a patch can be moved as: 16, 8, 4 bytes, number by number.
TEST(ViT, PatchesAreThoseOfAConvolution) {
  torch::manual_seed(3);
  for (const int64_t p : {1, 2, 3, 14, 16})
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16})
      for (const bool channels_last : {false, true})
        for (const bool for_images : {false, true}) {
          const auto side = 3 * p;
          models::ViTPatches patches(models::ViTOptions{.image_size = side, .patch_size = p, .hidden_dim = 8});
          patches->to(dtype);
          auto images = torch::randn({2, 3, side, side}).to(dtype);
          if (channels_last) images = images.contiguous(at::MemoryFormat::ChannelsLast);
          images.set_requires_grad(for_images);
          const auto found = patches(images);
          const auto wanted =
              torch::conv2d(images, patches->weight, patches->bias, /*stride=*/p).flatten(2).transpose(1, 2);
          const double near = dtype == at::kBFloat16 ? 3e-2 : 1e-5;
          EXPECT_TRUE(torch::allclose(found, wanted, near, near)) << p << " " << dtype;
          if (!for_images) continue;
          const auto seed = torch::randn_like(found);
          const auto first = torch::autograd::grad({found}, {images}, {seed}).at(0);
          const auto second = torch::autograd::grad({wanted}, {images}, {seed}).at(0);
          EXPECT_TRUE(torch::allclose(first, second, near, near)) << p << " " << dtype;
        }
}

TEST(ViT, BlocksAreUnitsAndFire) {
  auto model = models::vit(tiny());
  const auto units = select_units(*model, policy::by_class<models::EncoderBlock>());
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[1].name, "encoder.layers.encoder_layer_1");
  FiredCheck check("fsdp", select_units(*model, policy::all_units()));
  model(torch::randn({1, 3, 16, 16}));
  check.finish();
}

TEST(ViT, TheFirstTokenAloneIsTheSameFirstToken) {
  auto model = models::vit(tiny());
  const auto tokens = torch::randn({2, 5, 8});
  const auto all = model->encoder(tokens), first = model->encoder(tokens, true);
  EXPECT_EQ(all.sizes(), tokens.sizes());
  EXPECT_TRUE(torch::allclose(first, all.narrow(1, 0, 1), 1e-5, 1e-6));
  const auto options = tiny();
  torch::nn::Sequential blocks{models::EncoderBlock(options), models::EncoderBlock(options)};
  EXPECT_EQ(blocks->forward(tokens).sizes(), tokens.sizes());
}

TEST(ViT, TheClassTokenComesFirst) {
  torch::manual_seed(4);
  auto model = models::vit(tiny());
  torch::nn::init::normal_(model->class_token);
  torch::nn::init::normal_(model->head->weight);
  const auto images = torch::randn({2, 3, 16, 16});
  const auto run = [&](const std::function<Tensor()>& forward) {
    model->zero_grad();
    std::vector<Tensor> all{forward()};
    all[0].square().sum().backward();
    for (const auto& parameter : model->parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto expected = run([&] {
    const auto first = model->class_token.expand({2, -1, -1}).contiguous();
    return model->head(model->encoder(at::cat({first, model->conv_proj(images)}, 1), true).select(1, 0));
  });
  const auto found = run([&] { return model(images); });
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
}

/// What a unit is given and what it gives.
struct Counted : Interceptor {
  void around(Call& call) override {
    call.each_input([&](Tensor&) { ++inputs; });
    call.proceed();
    call.each_output([&](Tensor&) { ++outputs; });
  }
  int inputs = 0, outputs = 0;
};

TEST(ViT, BlocksThatLeaveTheirSumToTheNextAreBlocksOneByOne) {
  auto options = tiny();
  options.dropout = 0.25;
  auto model = models::vit(options);
  auto& encoder = *model->encoder;
  const auto tokens = torch::randn({2, 5, 8}), grad = torch::randn({2, 5, 8});
  const auto run = [&](const std::function<Tensor()>& forward) {
    torch::manual_seed(3);
    model->zero_grad();
    std::vector<Tensor> all{forward()};
    all[0].backward(grad);
    for (const auto& parameter : encoder.parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto expect_same = [](const std::vector<Tensor>& found, const std::vector<Tensor>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(found[i].equal(expected[i])) << i;
  };
  const auto one_by_one = run([&] {
    auto h = at::dropout(tokens + encoder.pos_embedding, options.dropout, true);
    for (auto& block : encoder.blocks) h = block(h);
    return std::get<0>(encoder.ln(h));
  });
  const auto counted = std::make_shared<Counted>();
  const auto attached = encoder.blocks[1]->attach(counted, Order::kInnermost);
  const auto together = run([&] { return model->encoder(tokens); });
  expect_same(together, one_by_one);
  EXPECT_EQ(counted->inputs, 2);
  EXPECT_EQ(counted->outputs, 2);
  // A checkpoint keeps one tensor, not two.
  *counted = {};
  const auto checkpoints = attach_checkpointing(*model, policy::by_class<models::EncoderBlock>());
  const auto again = run([&] { return model->encoder(tokens); });
  expect_same(again, one_by_one);
  EXPECT_EQ(counted->inputs, 2);  // one in forward, one when it runs again
}

TEST(ViT, PatchesAndEncoderAreCalledAsUnits) {
  auto model = models::vit(tiny());
  const auto of_patches = std::make_shared<Counted>(), of_encoder = std::make_shared<Counted>();
  const auto first = model->conv_proj->attach(of_patches, Order::kInnermost);
  const auto second = model->encoder->attach(of_encoder, Order::kInnermost);
  model(torch::randn({1, 3, 16, 16}));
  EXPECT_EQ(of_patches->inputs, 1);
  EXPECT_EQ(of_patches->outputs, 1);
  EXPECT_EQ(of_encoder->inputs, 2);  // patches and the class token
  EXPECT_EQ(of_encoder->outputs, 1);
}

TEST(ViT, DropoutIsOnlyThereInTraining) {
  auto options = tiny();
  options.dropout = options.attention_dropout = 0.5;
  auto model = models::vit(options);
  torch::nn::init::normal_(model->head->weight);
  const auto images = torch::randn({2, 3, 16, 16});
  EXPECT_FALSE(torch::equal(model(images), model(images)));
  model->eval();
  EXPECT_TRUE(torch::equal(model(images), model(images)));
}

TEST(ViT, WrongSizesAreOneLine) {
  EXPECT_EQ(error_of([] { models::vit_b_16({.image_size = 100}); }),
            "[vit] image_size 100 is not a multiple of patch_size 16");
  auto model = models::vit(tiny());
  EXPECT_EQ(error_of([&] {
              model(torch::randn({2, 3, 16, 8}));
            }),
            "[vit] images must be [B, 3, 16, 16], got [2, 3, 16, 8]");
}

}  // namespace
}  // namespace levin
