#include "levin/plots/axes.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(Axes, DividesARangeByRoundNumbers) {
  EXPECT_THAT(nice_ticks(0, 1, 5), ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}));
  EXPECT_THAT(nice_ticks(-3, 7, 4), ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 5.0}));
  EXPECT_THAT(nice_ticks(0.013, 0.021, 4),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.014, 0.016, 0.018, 0.02}));
  EXPECT_THAT(nice_ticks(2, 2, 4), ::testing::ElementsAre(2));
  EXPECT_FALSE(std::signbit(nice_ticks(0, 2, 5).at(0)));  // 0 is not labelled "-0"
}

TEST(Axes, LabelNumbersShortly) {
  EXPECT_EQ(tick_label(0), "0");
  EXPECT_EQ(tick_label(-0.25), "-0.25");
  EXPECT_EQ(tick_label(2e6), "2e+06");
}

TEST(Axes, WidenARange) {  // words: ok
  PlotRange range;
  EXPECT_TRUE(range.is_empty());
  range.add(2);
  range.widen(0.5);
  EXPECT_EQ(range.low, 1.5);
  range.add(3.5);
  range.widen(0.5);
  EXPECT_EQ(range.high, 4.5);
}

}  // namespace
}  // namespace levin
