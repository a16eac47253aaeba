#include "levin/plots/line_plot.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LinePlot, DrawsTheCurveAndTheMark) {
  const auto svg = to_svg(LinePlot{.title = "a < b & c",
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
  EXPECT_THAT(svg, Not(HasSubstr("no data")));
}

TEST(LinePlot, LeavesOutWhatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto svg =
      to_svg(LinePlot{.x = {1, 2, 3, 4, 5}, .y = {1, 2, nan, INFINITY, 3}, .mark = 2, .mark_label = "here"});
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
  EXPECT_THAT(svg, Not(HasSubstr(">here<")));
  EXPECT_THAT(to_svg(LinePlot{.x = {1}, .y = {1}}), Not(HasSubstr("nan")));
  EXPECT_THROW(to_svg(LinePlot{.x = {1, 2}, .y = {1}}), Error);
}

TEST(LinePlot, SaysThatThereIsNoData) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto without = picture_of(LinePlot{.title = "loss"});
  for (const auto& plot : {LinePlot{.title = "loss"}, LinePlot{.title = "loss", .x = {1, 2}, .y = {nan, nan}}})
    EXPECT_THAT(to_svg(plot), ::testing::AllOf(HasSubstr(">no data<"), Not(HasSubstr("nan"))));
  // In the pixels too: the words leave dark points in the middle of the field.
  const auto pixels = to_pixels(without, 1);
  EXPECT_LT(pixels.slice(1, 215, 245).slice(2, 360, 455).min().item<int>(), 220);
}

}  // namespace
}  // namespace levin
