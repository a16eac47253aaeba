#include "levin/plots/line_plot.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(LinePlot, DividesARangeByRoundNumbers) {
  EXPECT_THAT(nice_ticks(0, 1, 5), ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}));
  EXPECT_THAT(nice_ticks(-3, 7, 4), ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 5.0}));
  EXPECT_THAT(nice_ticks(0.013, 0.021, 4),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.014, 0.016, 0.018, 0.02}));
  EXPECT_THAT(nice_ticks(2, 2, 4), ::testing::ElementsAre(2));
  EXPECT_FALSE(std::signbit(nice_ticks(0, 2, 5).at(0)));  // 0 is not labelled "-0"
}

TEST(LinePlot, FitsIntoALine) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 0, 7, 7}, 2), "▁█");
  EXPECT_EQ(sparkline({0, std::nan(""), 7}, 10), "▁ █");
  EXPECT_EQ(sparkline({}, 10), "");
}

}  // namespace
}  // namespace levin
