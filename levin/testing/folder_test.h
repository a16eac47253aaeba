#pragma once

#include <filesystem>

#include <gtest/gtest.h>

#include "levin/testing/temporary_folder.h"

namespace levin::testing {

/// Tests with a temporary folder each.
class FolderTest : public ::testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace levin::testing
