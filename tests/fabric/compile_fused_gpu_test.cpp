// Steps that are fused on a GPU, against eager ones. docs/compile.md.
#include <cmath>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/levin.h"

namespace levin {
namespace {

struct ByHandImpl : torch::nn::Module {
  explicit ByHandImpl(double drop) : dropout(drop) {
    embed = register_module("embed", torch::nn::Embedding(512, 256));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({256})));
    qkv = register_module("qkv", torch::nn::Linear(256, 768));
    up = register_module("up", torch::nn::Linear(256, 1024));
    down = register_module("down", torch::nn::Linear(1024, 256));
    head = register_module("head", torch::nn::Linear(256, 512));
    mask = register_buffer("mask", torch::tril(torch::ones({256, 256})).view({1, 1, 256, 256}));
  }
  Tensor forward(const Tensor& ids, const Tensor& targets) {
    auto x = embed(ids);
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto parts = qkv(norm(x)).split(C, 2);
    const auto split = [&](const Tensor& t) { return t.view({B, T, 4, C / 4}).transpose(1, 2); };
    auto scores = torch::matmul(split(parts[0]), split(parts[1]).transpose(-2, -1)) * 0.125;
    scores = torch::softmax(scores.masked_fill(mask == 0, -INFINITY), -1);
    x = x + torch::matmul(scores, split(parts[2])).transpose(1, 2).contiguous().view({B, T, C});
    const auto h = up(x);
    x = x + torch::dropout(down(0.5 * h * (1 + torch::tanh(0.79788456 * (h + 0.044715 * torch::pow(h, 3.0))))), dropout,
                           true);
    return torch::nn::functional::cross_entropy(head(x).view({-1, 512}), targets.view({-1}));
  }
  double dropout;
  torch::nn::Embedding embed{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, up{nullptr}, down{nullptr}, head{nullptr};
  Tensor mask;
};
LEVIN_MODULE(ByHand);

std::vector<double> curve(const std::string& precision, CompileMode mode, double dropout, int accumulate = 1) {
  Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = precision, .compile = mode});
  fabric.launch();
  torch::manual_seed(1);
  auto model = fabric.init_module([&] { return ByHand(dropout); });
  auto [net, opt] = fabric.setup(model, optim::AdamW(model->parameters(), {.lr = 1e-3}));
  const auto device = torch::TensorOptions(fabric.device()).dtype(torch::kLong);
  auto step = fabric.compile(
      [&, &net = net, &opt = opt](Batch& batch, bool last) {
        auto loss = net(batch["ids"], batch["targets"]) / accumulate;
        fabric.backward(loss);
        if (last) {
          fabric.clip_gradients(net, opt, {.max_norm = 1.0});
          opt.step();
          opt.zero_grad();
        }
        return loss;
      },
      {.accumulates_gradients = accumulate > 1});
  std::vector<double> losses;
  for (int i = 0; i < 30; ++i) {
    // The odd batch is a kind of its own.
    const auto ids = torch::randint(0, 512, {i % 10 == 9 ? 3 : 8, 256}, device);
    Batch batch{{"ids", ids}, {"targets", (ids * 7 + 3) % 512}};
    losses.push_back(step(batch, i % accumulate == accumulate - 1).template item<double>());
  }
  return losses;
}

TEST(FusedOnGpu, StepsFollowEagerOnes) {
  for (const char* precision : {"32-true", "bf16-mixed", "bf16-true"})
    for (const double dropout : {0.0, 0.1})
      for (const int accumulate : {1, 2}) {
        const auto eager = curve(precision, false, dropout, accumulate);
        const auto fused = curve(precision, "fuse", dropout, accumulate);
        const double tolerance = std::string(precision) == "32-true" ? 1e-2 : 3e-2;
        for (size_t i = 0; i < eager.size(); ++i)
          EXPECT_NEAR(fused[i], eager[i], tolerance * eager[i])
              << precision << " dropout " << dropout << " accumulate " << accumulate << " step " << i;
      }
}

TEST(FusedOnGpu, TheGraphModeKeepsTheBits) {
  EXPECT_EQ(curve("bf16-mixed", "graph", 0.1), curve("bf16-mixed", false, 0.1));
}

}  // namespace
}  // namespace levin
