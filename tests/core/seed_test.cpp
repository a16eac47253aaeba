#include "levin/core/seed.h"

#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/testing/scoped_variable.h"

namespace levin {
namespace {

class SeedTest : public ::testing::Test {
 protected:
  const testing::ScopedVariable seed_{"LEVIN_GLOBAL_SEED", std::nullopt}, lightnings_{"PL_GLOBAL_SEED", std::nullopt},
      workers_{"PL_SEED_WORKERS", std::nullopt};
};

TEST_F(SeedTest, SameSeedSameNumbers) {
  EXPECT_EQ(seed_everything(7, {.verbose = false}), 7);
  const auto a = torch::randn({5});
  seed_everything(7, {.workers = true, .verbose = false});
  EXPECT_TRUE(torch::equal(a, torch::randn({5})));
  EXPECT_STREQ(std::getenv("PL_GLOBAL_SEED"), "7");
  EXPECT_STREQ(std::getenv("LEVIN_GLOBAL_SEED"), "7");
  EXPECT_STREQ(std::getenv("PL_SEED_WORKERS"), "1");
}

TEST_F(SeedTest, TakesTheSeedOfTheEnvironment) {
  EXPECT_EQ(seed_everything(std::nullopt, {.verbose = false}), 0);
  const testing::ScopedVariable none("LEVIN_GLOBAL_SEED", std::nullopt), other("PL_GLOBAL_SEED", "41");
  EXPECT_EQ(seed_everything(std::nullopt, {.verbose = false}), 41);
  for (const char* bad : {"abc", "", "3x", "1e3"}) {
    const testing::ScopedVariable seed("LEVIN_GLOBAL_SEED", bad);
    EXPECT_THROW(seed_everything(std::nullopt, {.verbose = false}), Error) << bad;
  }
}

TEST_F(SeedTest, RefusesWhatIsOutOfRange) {
  EXPECT_THROW(seed_everything(-1), Error);
  EXPECT_THROW(seed_everything(4294967296), Error);
  EXPECT_EQ(seed_everything(4294967295, {.verbose = false}), 4294967295);
}

TEST_F(SeedTest, ResetSeedsAgain) {
  reset_seed();
  seed_everything(3, {.verbose = false});
  const auto a = torch::randn({5});
  reset_seed();
  EXPECT_TRUE(torch::equal(a, torch::randn({5})));
}

TEST_F(SeedTest, StateIsCapturedAndRestored) {
  seed_everything(3, {.verbose = false});
  torch::randn({3});
  const auto saved = RngState::capture().state_dict();
  const auto a = torch::randn({5});
  RngState state;
  state.load_state_dict(saved);
  state.restore();
  EXPECT_TRUE(torch::equal(a, torch::randn({5})));
  state.restore();
  {
    IsolateRng isolated;
    torch::randn({9});
  }
  EXPECT_TRUE(torch::equal(a, torch::randn({5})));
  EXPECT_THROW(state.load_state_dict({}), Error);
  EXPECT_THROW(RngState{}.restore(), Error);
}

}  // namespace
}  // namespace levin
