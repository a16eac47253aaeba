#include "levin/nn/fuse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/nn/layers.h"

namespace levin {
namespace {

namespace tnn = torch::nn;

tnn::Sequential torchs() {
  return tnn::Sequential(tnn::Conv2d(tnn::Conv2dOptions(3, 4, 3).padding(1).bias(false)), tnn::BatchNorm2d(4),
                         tnn::ReLU(), tnn::BatchNorm2d(4),
                         tnn::MaxPool2d(tnn::MaxPool2dOptions(3).stride(2).padding(1)), tnn::Flatten(),
                         tnn::Linear(4 * 16, 8), tnn::GELU(), tnn::LayerNorm(tnn::LayerNormOptions({8})));
}

TEST(Fuse, ReplacesLayersOfSequentials) {
  torch::manual_seed(3);
  auto plain = torchs();
  torch::manual_seed(3);
  auto net = torchs();
  const auto before = net->named_parameters();
  torch::manual_seed(11);
  const auto report = fuse(*net);
  EXPECT_EQ(report.replaced, 6);
  EXPECT_THAT(report.left, ::testing::IsEmpty());
  const auto next = torch::rand({3});
  torch::manual_seed(11);
  EXPECT_TRUE(torch::equal(next, torch::rand({3}))) << "no random number is drawn";

  EXPECT_TRUE(net->ptr(1)->as<nn::BatchNormReLU2dImpl>());
  EXPECT_TRUE(net->ptr(2)->as<tnn::IdentityImpl>());
  EXPECT_TRUE(net->ptr(3)->as<nn::BatchNorm2dImpl>());
  EXPECT_TRUE(net->ptr(4)->as<nn::MaxPool2dImpl>());
  EXPECT_TRUE(dynamic_cast<Unit*>(net->ptr(6).get()));
  const auto after = net->named_parameters();
  ASSERT_EQ(after.keys(), before.keys());
  for (const auto& item : after) EXPECT_TRUE(item.value().is_same(before[item.key()])) << item.key();

  for (int i = 0; i < 2; ++i) {
    const auto x = torch::randn({2, 3, 8, 8});
    const auto found = net->forward(x), expected = plain->forward(x);
    EXPECT_TRUE(torch::equal(found, expected));
    found.sum().backward();
    expected.sum().backward();
  }
  const auto a = net->named_parameters(), b = plain->named_parameters();
  for (const auto& item : a) EXPECT_TRUE(torch::equal(item.value().grad(), b[item.key()].grad())) << item.key();
  const auto c = net->named_buffers(), d = plain->named_buffers();
  for (const auto& item : c) EXPECT_TRUE(torch::equal(item.value(), d[item.key()])) << item.key();
  EXPECT_EQ(fuse(*net).replaced, 0) << "once";
  net->to(at::kDouble);
  EXPECT_EQ(net->forward(torch::randn({2, 3, 8, 8}, at::kDouble)).scalar_type(), at::kDouble);
}

struct OwnBatchNormImpl : tnn::BatchNorm2dImpl {
  using tnn::BatchNorm2dImpl::BatchNorm2dImpl;
  Tensor forward(const Tensor& x) { return tnn::BatchNorm2dImpl::forward(x) * 2; }
};
TORCH_MODULE(OwnBatchNorm);

struct NetImpl : tnn::Module {
  NetImpl() {
    norm = register_module("norm", tnn::BatchNorm2d(4));
    body = register_module("body", tnn::Sequential(OwnBatchNorm(4), tnn::ReLU()));
    tail = register_module("tail", tnn::Sequential(tnn::BatchNorm2d(4)));
  }
  tnn::BatchNorm2d norm = nullptr;
  tnn::Sequential body = nullptr, tail = nullptr;
};

TEST(Fuse, NamesMembersAndLeavesOwnClasses) {
  const auto net = std::make_shared<NetImpl>();
  net->eval();
  const auto report = fuse(*net);
  EXPECT_EQ(report.replaced, 1);
  EXPECT_THAT(report.left, ::testing::ElementsAre("norm (BatchNorm2d)"));
  EXPECT_TRUE(net->body->ptr(0)->as<OwnBatchNormImpl>());
  EXPECT_TRUE(net->body->ptr(1)->as<tnn::ReLUImpl>());
  const auto inner = net->tail->ptr(0);
  EXPECT_TRUE(inner->as<nn::BatchNorm2dImpl>());
  EXPECT_FALSE(inner->is_training());
}

struct Nothing : Interceptor {
  void around(Call& call) override { call.proceed(); }
};

TEST(Fuse, LeavesUnitsThatAreIntercepted) {
  nn::BatchNorm2d norm(4);
  const auto attachment = norm->attach(std::make_shared<Nothing>(), Order::kInnermost);
  tnn::Sequential net(norm, nn::ReLU());
  EXPECT_EQ(fuse(*net).replaced, 0);
  EXPECT_EQ(net->ptr(0), norm.ptr());
}

}  // namespace
}  // namespace levin
