#include "levin/testing/gpu.h"
#include "training_curve.h"

namespace levin::testing {
namespace {

using TrainingCurveGpu = GpuTest;

TEST_F(TrainingCurveGpu, FollowsLightning32True) {
  expect_follows("cuda", "32-true", 5e-3, 1e-3);
}
TEST_F(TrainingCurveGpu, FollowsLightning16Mixed) {
  expect_follows("cuda", "16-mixed", 0.05, 0.01);
}
TEST_F(TrainingCurveGpu, FollowsLightningBf16Mixed) {
  expect_follows("cuda", "bf16-mixed", 0.1, 0.02);
}
TEST_F(TrainingCurveGpu, FollowsLightningBf16True) {
  expect_follows("cuda", "bf16-true", 0.2, 0.04);
}

}  // namespace
}  // namespace levin::testing
