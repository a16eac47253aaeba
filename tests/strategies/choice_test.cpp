#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/distributed/single.h"
#include "levin/strategies/comm_hooks.h"
#include "levin/testing/error_of.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST(StrategyChoice, ByNameAndByOptions) {
  EXPECT_EQ(make_strategy("auto", 1)->name(), "single_device");
  EXPECT_EQ(make_strategy("auto", 2)->name(), "ddp");
  EXPECT_EQ(make_strategy({}, 1)->name(), "single_device");
  EXPECT_EQ(make_strategy(DdpOptions{.bucket_cap_mb = 1}, 2)->name(), "ddp");
  EXPECT_EQ(StrategyChoice(DdpOptions{}).name(), "ddp");
  for (const auto& name : known_strategies()) EXPECT_TRUE(make_strategy(name, 2)) << name;
  EXPECT_THAT(known_strategies(), Contains("ddp_find_unused_parameters_true"));
}

TEST(StrategyChoice, WrongNamesAreExplained) {
  EXPECT_THAT(error_of([] { make_strategy("dpp"); }),
              HasSubstr("[strategy] name \"dpp\" is not known; did you mean \"ddp\"?"));
  EXPECT_EQ(
      error_of([] { make_strategy("ddp_spawn_find_unused_parameters_true"); }),
      "[strategy] \"ddp_spawn_find_unused_parameters_true\" is not needed: ranks are always processes of their own; "
      "\"ddp_find_unused_parameters_true\" is what is meant");
  EXPECT_THAT(error_of([] { make_strategy(DdpOptions{.comm_hook = "fp61"}); }), HasSubstr("did you mean \"fp16\"?"));
  EXPECT_THAT(error_of([] { make_strategy(DdpOptions{.bucket_cap_mb = 0}); }), HasSubstr("bucket_cap_mb is 0"));
  EXPECT_THAT(error_of([] { make_strategy(DdpOptions{.comm_hook = "powersgd", .powersgd_start_iter = 1}); }),
              HasSubstr("powersgd_start_iter is 1; it must be at least 2"));
}

TEST(SingleDevice, DoesNothingAndRefusesMore) {
  auto strategy = make_strategy("single_device");
  EXPECT_THAT(error_of([&] { strategy->group(); }), HasSubstr("call launch() first"));
  strategy->connect(std::make_shared<SingleCollective>(), at::kCPU);
  BoringModule module;
  EXPECT_EQ(strategy->setup_module(*module), nullptr);
  auto ddp = make_strategy("ddp");
  ddp->connect(std::make_shared<SingleCollective>(), at::kCPU);
  EXPECT_EQ(ddp->setup_module(*module), nullptr);
  run_ranks(2, [](Collective& group) {
    EXPECT_THAT(error_of([&] {
                  make_strategy("single_device")->connect({&group, [](auto*) {}}, at::kCPU);
                }),
                HasSubstr("\"single_device\" is for one process, and there are 2"));
  });
}

TEST(Strategy, GradNorm) {
  auto strategy = make_strategy("single_device");
  strategy->connect(std::make_shared<SingleCollective>(), at::kCPU);
  std::vector<Tensor> parameters{at::zeros({2}).requires_grad_(), at::zeros({1}, at::kBFloat16).requires_grad_(),
                                 at::zeros({3}).requires_grad_()};
  EXPECT_EQ(strategy->grad_norm(parameters, 2).item<float>(), 0);
  parameters[0].mutable_grad() = at::tensor({3.f, 0.f});
  parameters[1].mutable_grad() = at::tensor({-4.f}).to(at::kBFloat16);
  EXPECT_FLOAT_EQ(strategy->grad_norm(parameters, 2).item<float>(), 5);
  EXPECT_FLOAT_EQ(strategy->grad_norm(parameters, 1).item<float>(), 7);
  EXPECT_FLOAT_EQ(strategy->grad_norm(parameters, std::numeric_limits<double>::infinity()).item<float>(), 4);
}

}  // namespace
}  // namespace levin::testing
