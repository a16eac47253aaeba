#include "levin/plots/curves.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Curves, ArePathsInTheirColours) {
  const auto svg = to_svg(
      curves_picture("a < b", "below",
                     {{.title = "loss",
                       .x_label = "steps",
                       .curves = {{"one", {0, 1, 2}, {3, 2, 1}}, {"two", {0, 1, 2}, {3, NAN, 2}}}},
                      {.title = "accuracy", .x_label = "steps", .curves = {{"one", {2}, {50}}, {"two", {}, {}}}}}));
  EXPECT_THAT(svg, AllOf(HasSubstr("a &lt; b"), HasSubstr(">one<"), HasSubstr(">two<"), HasSubstr("#2563eb"),
                         HasSubstr("#ea580c"), Not(HasSubstr("nan")), Not(HasSubstr("no data")), HasSubstr(">0<"),
                         Not(HasSubstr(">-0<"))));
}

TEST(Curves, APanelWithoutDataSaysSo) {
  const auto svg = to_svg(
      curves_picture("a", "b",
                     {{.title = "loss", .x_label = "steps", .curves = {{"one", {0, 1}, {3, 2}}}},
                      {.title = "accuracy", .x_label = "steps", .curves = {{"one", {}, {}}, {"two", {1}, {NAN}}}},
                      {.title = "nothing", .x_label = "steps", .curves = {}}}));
  size_t said = 0;
  for (size_t at = svg.find(">no data<"); at != svg.npos; at = svg.find(">no data<", at + 1)) ++said;
  EXPECT_EQ(said, 2u);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Curves, SmoothingIsTheMeanOfNeighbours) {
  const auto curve = smoothed({"a", {0, 1, 2, 3, 4}, {1, 3, 5, 7, 9}}, 2);
  EXPECT_EQ(curve.x, (std::vector<double>{0.5, 2.5, 4}));
  EXPECT_EQ(curve.y, (std::vector<double>{2, 6, 9}));
}

}  // namespace
}  // namespace levin
