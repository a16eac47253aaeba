// Averages of a module's weights, against the sums written out.
#include "levin/optim/averaged_weights.h"

#include "fixtures.h"
#include "levin/testing/capture.h"

namespace levin::optim {
namespace {

using namespace testing;

struct Small : torch::nn::Module {
  Small() {
    weight = register_parameter("weight", torch::ones({3, 2}));
    half = register_parameter("half", torch::ones({4}, at::kBFloat16));
    tied = register_parameter("tied", weight);
    mean = register_buffer("mean", torch::zeros({2}));
    steps = register_buffer("steps", torch::zeros({}, at::kLong));
  }
  void set(double value) {
    at::NoGradGuard no_grad;
    weight.fill_(value);
    half.fill_(value);
    mean.fill_(value);
    steps.fill_(static_cast<int64_t>(value));
  }
  at::Tensor weight, half, tied, mean, steps;
};

double value_of(const StateDict& state, const char* name) {
  return state.at(name).to_tensor().flatten()[0].item<double>();
}

TEST(AveragedWeights, IsTheMean) {
  Small module;
  AveragedWeights average(module);
  for (const double value : {4.0, 8.0, 9.0}) {
    module.set(value);
    average.update();
  }
  EXPECT_EQ(average.count(), 3);
  const auto state = average.state_dict();
  EXPECT_NEAR(value_of(state, "weight"), 7, 1e-6);
  EXPECT_NEAR(value_of(state, "half"), 7, 0.05);
  EXPECT_NEAR(value_of(state, "mean"), 7, 1e-6);
  EXPECT_EQ(value_of(state, "steps"), 9);  // integers are copied
  EXPECT_TRUE(state.at("tied").to_tensor().is_same(state.at("weight").to_tensor()));
}

TEST(AveragedWeights, IsExponential) {
  Small module;
  AveragedWeights average(module, {.buffers = AveragedBuffers::kCopy, .ema_decay = 0.75});
  for (const double value : {4.0, 8.0, 9.0}) {
    module.set(value);
    average.update();
  }
  EXPECT_NEAR(value_of(average.state_dict(), "weight"), 0.75 * (0.75 * 4 + 0.25 * 8) + 0.25 * 9, 1e-6);
  EXPECT_EQ(value_of(average.state_dict(), "mean"), 9);
}

TEST(AveragedWeights, SaysThatNarrowWeightsHaveNarrowAverages) {
  torch::nn::Linear wide(2, 2), narrow(2, 2);
  narrow->to(at::kHalf);
  EXPECT_EQ(levin::testing::captured_stderr([&] { AveragedWeights average(*wide); }), "");
  EXPECT_THAT(levin::testing::captured_stderr([&] { AveragedWeights average(*narrow); }),
              ::testing::HasSubstr("the weights are Half, and so are their averages"));
}

TEST(AveragedWeights, SwapsThereAndBack) {
  Small module;
  AveragedWeights average(module, {.avg_fn = [](const at::Tensor& a, const at::Tensor& w, int64_t) { return a + w; }});
  module.set(4);
  average.update();
  module.set(8);
  average.update();
  const auto* address = module.weight.data_ptr();
  average.swap();
  EXPECT_TRUE(average.is_swapped());
  EXPECT_EQ(module.weight[0][0].item<double>(), 12);
  EXPECT_EQ(module.weight.data_ptr(), address);
  EXPECT_EQ(value_of(average.state_dict(), "weight"), 8);
  EXPECT_THAT(error_of([&] { average.update(); }), ::testing::HasSubstr("swap()"));
  average.swap();
  EXPECT_EQ(module.weight[0][0].item<double>(), 8);
  EXPECT_TRUE(module.weight.requires_grad());
}

TEST(AveragedWeights, LoadsItsState) {
  Small a, b;
  AveragedWeights first(a), second(b, {.buffers = AveragedBuffers::kLeave});
  a.set(4);
  first.update();
  second.load_state_dict(first.state_dict());
  EXPECT_EQ(value_of(second.state_dict(), "weight"), 4);
  EXPECT_FALSE(second.state_dict().contains("mean"));
  StateDict wrong{{"weight", torch::zeros({5})}};
  EXPECT_THAT(error_of([&] { second.load_state_dict(wrong); }), ::testing::HasSubstr("has shape [5]"));
  EXPECT_THAT(error_of([&] { AveragedWeights(a, {.ema_decay = 2}); }), ::testing::HasSubstr("ema_decay=2"));
}

}  // namespace
}  // namespace levin::optim
