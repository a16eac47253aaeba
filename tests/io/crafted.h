#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/testing/paths.h"

namespace levin::testing {

inline std::filesystem::path weight_fixture(const std::string& name) {
  return std::filesystem::path(source_dir()) / "tests/io/fixtures/weights" / name;
}

/// A folder of the test's own; LEVIN_IO_KEEP=FOLDER keeps what is written there.
class CraftedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* keep = std::getenv("LEVIN_IO_KEEP");
    keep_ = keep != nullptr;
    root_ = keep ? std::filesystem::path(keep)
                 : std::filesystem::temp_directory_path() / fmt::format("levin_weights_{}", ::getpid());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override {
    if (!keep_) std::filesystem::remove_all(root_);
  }
  std::filesystem::path file(const std::string& name, std::string_view content) {
    std::ofstream(root_ / name, std::ios::binary) << content;
    return root_ / name;
  }

  bool keep_ = false;
  std::filesystem::path root_;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// The line of the Error that `f` throws; anything but one line of a levin::Error fails the test.
template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    const std::string line = error.what();
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_TRUE(line.starts_with('[')) << line;
    return line;
  }
  return "no error";
}

}  // namespace levin::testing
