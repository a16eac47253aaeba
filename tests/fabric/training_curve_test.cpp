#include "training_curve.h"

namespace levin::testing {
namespace {

TEST(TrainingCurve, FollowsLightning32True) {
  expect_follows("cpu", "32-true", 1e-3, 1e-4);
}
TEST(TrainingCurve, FollowsLightning64True) {
  expect_follows("cpu", "64-true", 2e-5, 1e-5);
}
TEST(TrainingCurve, FollowsLightningBf16Mixed) {
  expect_follows("cpu", "bf16-mixed", 0.05, 0.01);
}
TEST(TrainingCurve, FollowsLightningBf16True) {
  expect_follows("cpu", "bf16-true", 0.15, 0.03);
}

}  // namespace
}  // namespace levin::testing
