#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"

namespace levin {

/// A test with an empty folder whose name has spaces and more than ASCII.
class FolderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() /
            fmt::format("levin chëckpoint {} {}", ::getpid(),
                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override {
    std::filesystem::permissions(root_, std::filesystem::perms::owner_all);
    std::filesystem::remove_all(root_);
  }
  /// The line of the error that f throws; "no error" when none.
  static std::string error_of(const std::function<void()>& f) {
    try {
      f();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    return "no error";
  }
  size_t entries() const {
    return static_cast<size_t>(
        std::distance(std::filesystem::directory_iterator(root_), std::filesystem::directory_iterator()));
  }

  std::filesystem::path root_;
};

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

}  // namespace levin
