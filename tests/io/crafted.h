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
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"

namespace levin::testing {

inline std::filesystem::path weight_fixture(const std::string& name) {
  return std::filesystem::path(source_dir()) / "tests/io/fixtures/weights" / name;
}

/// A folder of the test's own; LEVIN_IO_KEEP=FOLDER keeps what is written there.
class CraftedFiles : public FolderTest {
 protected:
  CraftedFiles() { std::filesystem::create_directories(root_); }
  std::filesystem::path file(const std::string& name, std::string_view content) {
    std::ofstream(root_ / name, std::ios::binary) << content;
    return root_ / name;
  }

  const std::filesystem::path root_ = std::getenv("LEVIN_IO_KEEP") ? std::getenv("LEVIN_IO_KEEP") : folder_;
};

}  // namespace levin::testing
