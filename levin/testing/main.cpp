#include <cstdio>

#include <gtest/gtest.h>

namespace {

// Before the first test, so that it is there when one crashes or hangs. gtest's brief output has no such line.
class OrderLine final : public testing::EmptyTestEventListener {
  void OnTestProgramStart(const testing::UnitTest& program) override {
    if (!GTEST_FLAG_GET(shuffle)) return;
    std::printf("Shuffled; the same order again: --gtest_shuffle --gtest_random_seed=%d\n", program.random_seed());
    std::fflush(stdout);
  }
};

}  // namespace

// The main of every test program.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new OrderLine);
  return RUN_ALL_TESTS();
}
