#include "levin/plots/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"

namespace levin {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TimelinePlot two_lanes() {
  return {
      .title = "a < b",
      .subtitle = "below",
      .kinds = {{.name = "work", .color = 0x2563eb, .letter = 'W'}, {.name = "rest", .color = 0xd8b4fe, .letter = 'R'}},
      .lanes = {{.label = "first", .note = "12", .blocks = {{0, 1, "0", 0}, {1, 3, "10", 1}}},
                {.label = "second", .blocks = {{2, 2.25, "1", 0}, {3, 4, "2", 0}}}}};
}

TEST(Timeline, DrawsBlocksWithTheTextThatFits) {
  const auto svg = to_svg(picture_of(two_lanes()));
  for (const char* text : {"a &lt; b", ">below<", ">first<", ">second<", ">12<", ">work<", ">rest<", ">10<"})
    EXPECT_THAT(svg, HasSubstr(text));
  // White letters on the dark kind, dark ones on the light.
  EXPECT_THAT(svg, HasSubstr("fill=\"#ffffff\" text-anchor=\"middle\">0<"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#18181b\" text-anchor=\"middle\">10<"));
  // A block too thin for its text goes without.
  auto thin = two_lanes();
  thin.lanes[0].blocks.push_back({100, 1000, "far", 0});
  EXPECT_THAT(to_svg(picture_of(thin)), Not(HasSubstr(">10<")));
}

TEST(Timeline, AnEmptyOneIsAPictureToo) {
  EXPECT_THAT(to_svg(picture_of(TimelinePlot{.title = "none", .lanes = {{.label = "idle"}}})), Not(HasSubstr("nan")));
  EXPECT_EQ(text_of(TimelinePlot{}), "  . idle\n");
}

TEST(Timeline, IsTextWithACellForAUnit) {
  EXPECT_EQ(text_of(two_lanes()),
            "first  W0 R10---.\n"
            "second .  .  .  W2\n"
            "W work  R rest  . idle\n");
  // Quarter units show the short block; rows are cut to the width, about evenly.
  EXPECT_EQ(text_of(two_lanes(), {.unit = 0.25, .columns = 40}),
            "first  W0 ---------R10---------\n"
            "second .  .  .  .  .  .  .  .\n"
            "\n"
            "first  ------------.  .  .  .\n"
            "second W1 .  .  .  W2 ---------\n"
            "W work  R rest  . idle\n");
  EXPECT_THROW(text_of(two_lanes(), {.unit = 0}), Error);
}

}  // namespace
}  // namespace levin
