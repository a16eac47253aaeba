#pragma once

#include <gtest/gtest.h>

namespace levin::testing {

/// Whether LibTorch can use a GPU here. A forked process finds out: one that has used CUDA cannot fork ranks that use
/// it.
bool has_gpu();

/// Tests that are skipped where there is no GPU.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU";
  }
};

}  // namespace levin::testing
