#include "levin/kernels/norm/batch_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/norm/batch_norm_detail.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace {

/// While it lives, meta tensors stand for tensors on CUDA.
struct PlaysCuda {
  PlaysCuda() { set_played_device(c10::kCUDA); }
  ~PlaysCuda() { set_played_device(c10::kCPU); }
};

struct Case {
  bool residual = false, relu = false, training = true, affine = true;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool residual : {false, true})
    for (const bool relu : {false, true})
      for (const bool training : {false, true})
        for (const bool affine : {false, true}) all.push_back({residual, relu, training, affine});
  return all;
}

struct Inputs {
  Tensor x, residual, weight, bias, mean, var;
  Inputs(const Case& c, at::ScalarType dtype = at::kFloat) {
    const auto options = torch::dtype(dtype);
    x = (torch::randn({4, 3, 5, 2}, options) * 2 + 1).requires_grad_();
    if (c.residual) residual = torch::randn({4, 3, 5, 2}, options).requires_grad_();
    if (c.affine)
      weight = torch::randn({3}, options).requires_grad_(), bias = torch::randn({3}, options).requires_grad_();
    mean = torch::randn({3}, options);
    var = torch::rand({3}, options) + 0.5;
  }
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all{x};
    for (const auto& each : {residual, weight, bias})
      if (each.defined()) all.push_back(each);
    return all;
  }
};

/// As models wrote it before.
Tensor plain(const Inputs& in, const Case& c) {
  auto y = torch::batch_norm(in.x, in.weight, in.bias, in.mean, in.var, c.training, 0.2, 1e-5, true);
  if (c.residual) y = y.add_(in.residual);
  return c.relu ? y.relu_() : y;
}

Tensor fused(const Inputs& in, const Case& c) {
  return batch_norm_act(in.x, in.residual, in.weight, in.bias, in.mean, in.var, c.training, 0.2, 1e-5, c.relu);
}

TEST(BatchNormAct, OnTheCpuIsTorchsBitByBit) {
  for (const auto& c : cases()) {
    torch::manual_seed(1);
    const Inputs mine(c);
    torch::manual_seed(1);
    const Inputs theirs(c);
    const auto found = fused(mine, c), expected = plain(theirs, c);
    EXPECT_TRUE(torch::equal(found, expected));
    EXPECT_TRUE(torch::equal(mine.mean, theirs.mean));
    EXPECT_TRUE(torch::equal(mine.var, theirs.var));
    const auto grad = torch::randn_like(found);
    found.backward(grad);
    expected.backward(grad);
    for (size_t i = 0; i < mine.leaves().size(); ++i)
      EXPECT_TRUE(torch::equal(mine.leaves()[i].grad(), theirs.leaves()[i].grad())) << i;
  }
}

TEST(BatchNormAct, GradientsAreFiniteDifferences) {
  for (const auto& c : cases()) {
    torch::manual_seed(3);
    const Inputs in(c, at::kDouble);
    const auto direction = torch::randn({4, 3, 5, 2}, at::kDouble);
    const auto loss = [&] { return (fused(in, c) * direction).sum(); };
    const auto grads = torch::autograd::grad({loss()}, in.leaves());
    const torch::NoGradGuard no_grad;
    constexpr double kStep = 1e-6;
    for (size_t i = 0; i < grads.size(); ++i) {
      auto leaf = in.leaves()[i].view(-1);
      for (int64_t k = 0; k < leaf.numel(); k += 7) {
        const auto before = leaf[k].item<double>();
        leaf[k] = before + kStep;
        const auto up = loss().item<double>();
        leaf[k] = before - kStep;
        const auto down = loss().item<double>();
        leaf[k] = before;
        EXPECT_NEAR(grads[i].reshape(-1)[k].item<double>(), (up - down) / (2 * kStep), 1e-4) << i << ", " << k;
      }
    }
  }
}

TEST(BatchNormAct, CanBeDifferentiatedTwice) {
  for (const auto& c : cases()) {
    torch::manual_seed(4);
    const Inputs mine(c, at::kDouble);
    torch::manual_seed(4);
    const Inputs theirs(c, at::kDouble);
    const auto second = [](const Tensor& y, const Inputs& in) {
      const auto first = torch::autograd::grad({y.pow(2).sum()}, {in.x}, {}, true, true);
      return torch::autograd::grad({first[0].pow(3).sum()}, {in.x})[0];
    };
    EXPECT_TRUE(torch::equal(second(fused(mine, c), mine), second(plain(theirs, c), theirs)));
  }
}

TEST(BatchNormAct, BitsOfTheReluSayWhatPassed) {
  for (const int64_t width : {1, 2, 4, 8}) {
    const auto passed = torch::rand({2, 16, 3, 5}) > 0.5;
    const auto rows = passed.permute({0, 2, 3, 1}).reshape({30, 16 / width, width}).to(at::kByte);
    const auto bits = rows.bitwise_left_shift(torch::arange(width, at::kByte)).sum(-1).to(at::kByte);
    EXPECT_TRUE(torch::equal(detail::passed_of_bits(bits, {2, 16, 3, 5}), passed)) << width;
    EXPECT_TRUE(torch::equal(detail::passed_of_bits(bits, {30, 16}), rows.to(at::kBool).view({30, 16}))) << width;
  }
}

TEST(BatchNormAct, OnMetaMakesWhatCudaMakes) {
  const PlaysCuda played;
  for (const auto& c : cases()) {
    const auto options = torch::dtype(at::kBFloat16).device(at::kMeta);
    const auto numbers = torch::dtype(at::kFloat).device(at::kMeta);
    const auto x =
        torch::empty({4, 16, 5, 2}, options).contiguous(at::MemoryFormat::ChannelsLast).detach().requires_grad_();
    const auto residual = c.residual ? torch::empty_like(x).requires_grad_() : Tensor();
    const auto weight = c.affine ? torch::empty({16}, numbers).requires_grad_() : Tensor();
    const auto y = batch_norm_act(x, residual, weight, weight, torch::empty({16}, numbers), torch::empty({16}, numbers),
                                  c.training, 0.1, 1e-5, c.relu);
    EXPECT_NE(y.grad_fn()->name().find("BatchNormAct"), std::string::npos) << y.grad_fn()->name();
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    y.backward(torch::empty_like(y));
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(x.grad().strides(), x.strides());
    if (c.residual) {
      EXPECT_EQ(residual.grad().strides(), x.strides());
    }
    if (c.affine) {
      EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    }
  }
}

}  // namespace
}  // namespace levin::kernels
