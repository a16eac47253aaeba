#include "levin/profilers/schedule.h"

#include <gtest/gtest.h>

#include "levin/testing/error_of.h"

namespace levin {
namespace {

std::string actions(const ProfilerSchedule& schedule, int steps) {
  std::string text;
  for (int i = 0; i < steps; ++i) text += "NWRS"[static_cast<int>(schedule.action(i))];
  return text;
}

// The states that torch.profiler.schedule gives for the same arguments.
TEST(ProfilerSchedule, HasTorchsStates) {
  EXPECT_EQ(actions({.wait = 1, .warmup = 1, .active = 2, .repeat = 2, .skip_first = 1}, 11), "NNWRSNWRSNN");
  EXPECT_EQ(actions({.wait = 2, .warmup = 1, .active = 1, .repeat = 0, .skip_first = 1, .skip_first_wait = true}, 9),
            "NWSNNWSNN");
  EXPECT_EQ(actions({}, 8), "NWRRSNNN");
  EXPECT_EQ(actions({.wait = 0, .warmup = 0, .active = 1, .repeat = 0}, 4), "SSSS");
  EXPECT_EQ(actions({.wait = 0, .warmup = 1, .active = 2, .repeat = 0}, 7), "WRSWRSW");
}

TEST(ProfilerSchedule, RefusesWhatRecordsNothing) {
  EXPECT_EQ(testing::error_of([] { ProfilerSchedule{.active = 0}.check(); }),
            "[profiler] schedule.active 0 is not allowed (1 or more)");
  EXPECT_EQ(testing::error_of([] { ProfilerSchedule{.wait = -1}.check(); }),
            "[profiler] schedule.wait -1 is not allowed (0 or more)");
}

}  // namespace
}  // namespace levin
