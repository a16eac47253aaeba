#include "levin/core/line_plot.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LinePlot, DividesARangeByRoundNumbers) {
  EXPECT_THAT(nice_ticks(0, 1, 5), ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 0.2, 0.4, 0.6, 0.8, 1.0}));
  EXPECT_THAT(nice_ticks(-3, 7, 4), ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.0, 5.0}));
  EXPECT_THAT(nice_ticks(0.013, 0.021, 4),
              ::testing::Pointwise(::testing::DoubleNear(1e-12), {0.014, 0.016, 0.018, 0.02}));
  EXPECT_THAT(nice_ticks(2, 2, 4), ::testing::ElementsAre(2));
}

TEST(LinePlot, DrawsTheCurveAndTheMark) {
  const auto svg = to_svg({.title = "a < b & c",
                           .log_x = true,
                           .x = {1e-4, 1e-3, 1e-2, 1e-1},
                           .y = {1, 3, 2, 5},
                           .mark = 2,
                           .mark_label = "here"});
  EXPECT_THAT(svg, ::testing::StartsWith("<svg"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  for (const char* label : {">1e-4<", ">1e-3<", ">0.01<", ">0.1<", ">here<"}) EXPECT_THAT(svg, HasSubstr(label));
  // From the left edge to the right one, in four points.
  EXPECT_THAT(svg, HasSubstr("d=\"M78.0 "));
  EXPECT_THAT(svg, HasSubstr("L736.0 "));
}

TEST(LinePlot, LeavesOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto svg = to_svg({.x = {1, 2, 3, 4, 5}, .y = {1, 2, nan, INFINITY, 3}, .mark = 2});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, Not(HasSubstr("class=\"mark\"")));
  for (const auto& plot : {LinePlot{}, LinePlot{.x = {1}, .y = {1}}, LinePlot{.x = {1, 2}, .y = {nan, nan}}})
    EXPECT_THAT(to_svg(plot), Not(HasSubstr("nan")));
  EXPECT_THROW(to_svg({.x = {1, 2}, .y = {1}}), Error);
}

TEST(LinePlot, FitsIntoALine) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 0, 7, 7}, 2), "▁█");
  EXPECT_EQ(sparkline({0, std::nan(""), 7}, 10), "▁ █");
  EXPECT_EQ(sparkline({}, 10), "");
}

}  // namespace
}  // namespace levin
