#include "levin/plots/sparkline.h"

#include <cmath>

#include <gtest/gtest.h>

namespace levin {
namespace {

TEST(Sparkline, FitsIntoALine) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 0, 7, 7}, 2), "▁█");
  EXPECT_EQ(sparkline({0, std::nan(""), 7}, 10), "▁ █");
  EXPECT_EQ(sparkline({}, 10), "");
}

}  // namespace
}  // namespace levin
