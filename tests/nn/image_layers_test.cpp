#include "levin/nn/image_layers.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace levin {
namespace {

TEST(BatchNorm2d, IsTorchs) {
  for (const bool tracks : {true, false})
    for (const auto momentum : {std::optional<double>(0.3), std::optional<double>()}) {
      const auto options = nn::BatchNormOptions(3).track_running_stats(tracks).momentum(momentum);
      nn::BatchNorm2d mine(options);
      torch::nn::BatchNorm2d theirs(options);
      EXPECT_EQ(mine->as<torch::nn::BatchNorm2dImpl>(), mine.ptr().get());
      for (int i = 0; i < 3; ++i) {
        const auto x = torch::randn({4, 3, 5, 2});
        EXPECT_TRUE(torch::equal(mine(x), theirs(x)));
      }
      mine->eval(), theirs->eval();
      const auto x = torch::randn({4, 3, 5, 2}), residual = torch::randn({4, 3, 5, 2});
      EXPECT_TRUE(torch::equal(mine(x), theirs(x)));
      EXPECT_TRUE(torch::equal(mine(x, residual, true), (theirs(x) + residual).relu()));
      const auto a = mine->named_buffers(), b = theirs->named_buffers();
      ASSERT_EQ(a.keys(), b.keys());
      for (const auto& item : a)
        if (item.value().defined()) {
          EXPECT_TRUE(torch::equal(item.value(), b[item.key()])) << item.key();
        }
    }
}

TEST(BatchNorm2d, RefusesWhatTorchRefuses) {
  nn::BatchNorm2d norm(3);
  EXPECT_THROW(norm(torch::randn({1, 3, 1, 1})), c10::Error);
  EXPECT_THROW(norm(torch::randn({4, 3})), c10::Error);
  norm->eval();
  EXPECT_NO_THROW(norm(torch::randn({1, 3, 1, 1})));
}

TEST(BatchNorm2d, StandsInSequentialsAndClones) {
  torch::nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 4, 3)), nn::BatchNorm2d(4), nn::BatchNormReLU2d(4));
  const auto x = torch::randn({2, 3, 8, 8});
  EXPECT_GE(net->forward(x).min().item<double>(), 0);
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  net->eval(), copy->eval();
  EXPECT_TRUE(torch::equal(net->forward(x), copy->forward(x)));
  copy->ptr(2)->as<torch::nn::BatchNorm2dImpl>()->weight.data().fill_(0);
  EXPECT_FALSE(torch::equal(net->forward(x), copy->forward(x)));
}

TEST(MaxPool2d, IsTorchs) {
  const std::vector<nn::MaxPool2dOptions> all{nn::MaxPool2dOptions(2), nn::MaxPool2dOptions(3).stride(2).padding(1),
                                              nn::MaxPool2dOptions({3, 2}).stride({1, 2}).dilation({1, 2}),
                                              nn::MaxPool2dOptions(3).stride(2).ceil_mode(true)};
  for (const auto& options : all) {
    nn::MaxPool2d mine(options);
    torch::nn::MaxPool2d theirs(options);
    for (const auto& x : {torch::randn({4, 3, 10, 8}), torch::randn({3, 10, 8})})
      EXPECT_TRUE(torch::equal(mine(x), theirs(x)));
    torch::nn::Sequential net(mine);
    const auto x = torch::randn({4, 3, 10, 8});
    EXPECT_TRUE(torch::equal(net->forward(x), theirs(x)));
  }
}

}  // namespace
}  // namespace levin
