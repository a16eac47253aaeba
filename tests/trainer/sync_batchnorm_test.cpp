#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/strategies/choice.h"
#include "levin/trainer/options.h"

namespace levin {
namespace {

TEST(SyncBatchNormOfTrainer, KeepsTheStrategyThatWasAskedFor) {
  for (const auto& name : known_strategies()) {
    if (name == "single_device" || name == "auto" || !make_strategy(name, 2)->traits().syncs_batchnorm) continue;
    const auto plan = resolve_trainer(
        {.accelerator = "cpu", .strategy = name, .devices = 2, .precision = "bf16-mixed", .sync_batchnorm = true}, 0);
    EXPECT_EQ(plan.fabric.strategy.name(), name);
    EXPECT_TRUE(plan.fabric.strategy.sync_batchnorm()) << name;
    EXPECT_EQ(make_strategy(plan.fabric.strategy, 2)->name(), make_strategy(name, 2)->name());
    EXPECT_THAT(plan.to_string(), ::testing::HasSubstr(make_strategy(name, 2)->name()));
  }
}

TEST(SyncBatchNormOfTrainer, KeepsTheOptionsOfTheStrategy) {
  const auto plan = resolve_trainer({.accelerator = "cpu",
                                     .strategy = FsdpOptions{.sharding_strategy = "grad_op"},
                                     .devices = 2,
                                     .sync_batchnorm = true},
                                    0);
  const auto* options = plan.fabric.strategy.options<FsdpOptions>();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->sharding_strategy, "grad_op");
}

// One process, or as many as a launcher starts: that is not known yet.
TEST(SyncBatchNormOfTrainer, IsNotForgottenWhereTheNumberOfRanksIsNotKnownYet) {
  const auto plan = resolve_trainer({.accelerator = "cpu", .sync_batchnorm = true}, 0);
  EXPECT_TRUE(plan.fabric.strategy.sync_batchnorm());
  EXPECT_EQ(make_strategy(plan.fabric.strategy, 1)->name(), "single_device");
}

}  // namespace
}  // namespace levin
