// `.compile = "fuse"` on the CPU: models as users write them, trained fused and eager. docs/compile.md.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/levin.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"

namespace levin {
namespace {

struct HandBlockImpl : torch::nn::Module {
  HandBlockImpl(int64_t d, int64_t h, int64_t t)
      : heads(h),
        ln1(register_module("ln1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d})))),
        ln2(register_module("ln2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d})))),
        qkv(register_module("qkv", torch::nn::Linear(d, 3 * d))),
        out(register_module("out", torch::nn::Linear(d, d))),
        fc(register_module("fc", torch::nn::Linear(d, 4 * d))),
        proj(register_module("proj", torch::nn::Linear(4 * d, d))),
        mask(register_buffer("mask", torch::tril(torch::ones({t, t})).view({1, 1, t, t}))) {}
  Tensor forward(Tensor x) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    auto parts = qkv(ln1(x)).split(C, 2);
    auto head = [&](const Tensor& t) { return t.view({B, T, heads, C / heads}).transpose(1, 2); };
    auto att = torch::matmul(head(parts[0]), head(parts[1]).transpose(-2, -1)) * (1.0 / std::sqrt(double(C / heads)));
    att = torch::softmax(att.masked_fill(mask.slice(2, 0, T).slice(3, 0, T) == 0, -INFINITY), -1);
    att = torch::dropout(att, 0.1, is_training());
    x = x + out(torch::matmul(att, head(parts[2])).transpose(1, 2).contiguous().view({B, T, C}));
    auto h = fc(ln2(x));
    h = 0.5 * h * (1.0 + torch::tanh(std::sqrt(2.0 / M_PI) * (h + 0.044715 * torch::pow(h, 3.0))));
    return x + proj(h);
  }
  int64_t heads;
  torch::nn::LayerNorm ln1, ln2;
  torch::nn::Linear qkv, out, fc, proj;
  Tensor mask;
};
LEVIN_MODULE(HandBlock);

struct Net : torch::nn::Module {
  Net()
      : in(register_module("in", torch::nn::Linear(12, 32))),
        block(register_module("block", HandBlock(32, 4, 16))),
        norm(register_module("norm", torch::nn::BatchNorm1d(32))),
        head(register_module("head", torch::nn::Linear(32, 5))) {}
  Tensor forward(const Tensor& x) { return head(norm(block(in(x)).mean(1))); }
  torch::nn::Linear in;
  HandBlock block;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear head;
};

struct Curve {
  std::vector<double> losses;
  std::vector<Tensor> params;
  detail::StepCompiler::Counts counts;
};

enum class Optimizers { kAdamW, kSgd, kTorch };

Curve train(CompileMode mode, const std::string& precision, Optimizers which, bool accumulate = false) {
  Fabric fabric({.accelerator = "cpu", .devices = 1, .precision = precision, .compile = mode});
  fabric.launch();
  torch::manual_seed(1);
  auto model = std::make_shared<Net>();
  auto net = fabric.setup_module(model);
  Optimizer made = which == Optimizers::kAdamW ? optim::AdamW(model->parameters(), {.lr = 1e-2})
                   : which == Optimizers::kSgd
                       ? Optimizer(optim::SGD(model->parameters(), {.lr = 1e-2, .momentum = 0.9}))
                       : optim::adapt(std::make_shared<torch::optim::Adam>(model->parameters(), 1e-2));
  auto opt = fabric.setup_optimizers(made);
  auto step = fabric.compile([&](const Tensor& x, const Tensor& y, bool last) {
    auto loss = torch::nn::functional::cross_entropy(net(x), y);
    fabric.backward(loss);
    if (!last) return loss;
    fabric.clip_gradients(opt, {.max_norm = 1.0});
    opt.step();
    opt.zero_grad();
    return loss;
  });
  Curve curve;
  for (int i = 0; i < 20; ++i) {
    torch::manual_seed(100 + i);
    const int64_t rows = i % 5 == 4 ? 3 : 6;  // the odd batch
    auto x = torch::randn({rows, 16, 12}), y = torch::randint(0, 5, {rows});
    if (i == 12) opt.set_lr(1e-3);
    curve.losses.push_back(step(x, y, !accumulate || i % 2 == 1).item<double>());
  }
  for (const auto& param : model->parameters()) curve.params.push_back(param.detach().clone());
  for (const auto& buffer : model->buffers()) curve.params.push_back(buffer.clone());
  if (step.compiler()) curve.counts = step.compiler()->counts();
  return curve;
}

void expect_alike(const Curve& fused, const Curve& eager, double limit) {
  for (size_t i = 0; i < eager.losses.size(); ++i) EXPECT_NEAR(fused.losses[i], eager.losses[i], limit) << "step " << i;
  for (size_t i = 0; i < eager.params.size(); ++i)
    EXPECT_TRUE(torch::allclose(fused.params[i].to(torch::kDouble), eager.params[i].to(torch::kDouble), limit, limit)) << i;
}

TEST(FusedSteps, TrainAsEagerDoes) {
  for (const auto which : {Optimizers::kAdamW, Optimizers::kSgd, Optimizers::kTorch}) {
    const auto eager = train(false, "32-true", which), fused = train("fuse", "32-true", which);
    expect_alike(fused, eager, 1e-4);
    EXPECT_GE(fused.counts.replayed, 10) << "both shapes run from programs";
  }
}

TEST(FusedSteps, MixedPrecision) {
  expect_alike(train("fuse", "bf16-mixed", Optimizers::kAdamW), train(false, "bf16-mixed", Optimizers::kAdamW), 5e-2);
}

TEST(FusedSteps, GradientsThatAccumulate) {
  const auto fused = train("fuse", "32-true", Optimizers::kSgd, true);
  expect_alike(fused, train(false, "32-true", Optimizers::kSgd, true), 1e-4);
  EXPECT_GT(fused.counts.replayed, 0);
}

TEST(FusedSteps, WordsOfTheOption) {
  EXPECT_EQ(CompileMode("fuse").kind(), CompileMode::Kind::kFuse);
  EXPECT_EQ(CompileMode(true).kind(), CompileMode::Kind::kGraph);
  EXPECT_FALSE(CompileMode("off"));
  EXPECT_NE(testing::error_of([] { CompileMode("fused"); }).find("did you mean \"fuse\""), std::string::npos);
}

TEST(FusedSteps, AStepThatCannotBeFusedRunsEagerly) {
  Fabric fabric({.accelerator = "cpu", .devices = 1, .compile = "fuse"});
  fabric.launch();
  auto step = fabric.compile([](const Tensor& x) { return x * x.sum().item<float>(); });
  for (int i = 0; i < 6; ++i) {
    const auto x = torch::randn({4});
    EXPECT_TRUE(torch::equal(step(x), x * x.sum().item<float>()));
  }
  EXPECT_EQ(step.compiler()->counts().replayed, 0);
}

}  // namespace
}  // namespace levin
