// A strategy of a program's own: a header and a source, chosen by its options; no table knows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/distributed/single.h"
#include "levin/strategies/choice.h"
#include "levin/strategies/layout.h"
#include "levin/testing/error_of.h"

namespace local_sgd {

struct LocalSgdOptions {
  int period = 4;
};

class LocalSgdStrategy final : public levin::Strategy {
 public:
  explicit LocalSgdStrategy(const LocalSgdOptions& options)
      : Strategy({.name = "local_sgd", .collective = {.backend = "gloo"}}), options_(options) {}
  std::unique_ptr<levin::ModuleSync> setup_module(torch::nn::Module&) override { return nullptr; }
  const LocalSgdOptions& options() const { return options_; }

 private:
  LocalSgdOptions options_;
};

std::unique_ptr<levin::Strategy> strategy_of(const LocalSgdOptions& options) {
  return std::make_unique<LocalSgdStrategy>(options);
}

}  // namespace local_sgd

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

TEST(OwnStrategies, AreChosenByTheirOptions) {
  const StrategyChoice choice = local_sgd::LocalSgdOptions{.period = 8};
  EXPECT_EQ(choice.name(), "local_sgd");
  EXPECT_EQ(choice.process_group_backend(), "gloo");
  ASSERT_TRUE(choice.options<local_sgd::LocalSgdOptions>());
  EXPECT_EQ(choice.options<local_sgd::LocalSgdOptions>()->period, 8);
  EXPECT_FALSE(choice.options<DdpOptions>());
  EXPECT_FALSE(StrategyChoice("ddp").options<DdpOptions>());
  const auto strategy = make_strategy(choice, 2);
  EXPECT_EQ(dynamic_cast<local_sgd::LocalSgdStrategy&>(*strategy).options().period, 8);
}

TEST(OwnStrategies, HaveDefaultsForTheRest) {
  const auto strategy = make_strategy(local_sgd::LocalSgdOptions{}, 2);
  EXPECT_THAT(error_of([&] { strategy->group(); }), HasSubstr("\"local_sgd\" has not been connected"));
  EXPECT_THAT(error_of([&] { strategy->sync_batchnorm(); }), HasSubstr("[local_sgd] sync_batchnorm is not possible"));
  EXPECT_EQ(strategy->layout_over(2).ranks, 2);
  EXPECT_FALSE(strategy->layout_over(2).shards_optimizer);
  strategy->connect(std::make_shared<SingleCollective>(), at::kCPU);
  EXPECT_EQ(strategy->layout().ranks, 1);
  EXPECT_EQ(strategy->shards(), nullptr);
}

}  // namespace
}  // namespace levin::testing
