// Files that appear together, and what may be replaced.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Staging : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("levin_staging_" + std::to_string(::getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  static void put(const fs::path& path, std::string_view text) {
    FileWriter file(path);
    file.write(text);
    file.close();
  }
  std::string refusal(const fs::path& path, OutputKind kind, bool overwrite) {
    try {
      check_destination("here", path, kind, overwrite, "--overwrite");
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }

  fs::path root_;
};

TEST_F(Staging, FilesAppearTogether) {
  StagedFiles files;
  put(files.add(root_ / "a"), "1");
  put(files.add(root_ / "b"), "2");
  EXPECT_FALSE(fs::exists(root_ / "a"));
  files.commit();
  EXPECT_EQ(read_file(root_ / "a") + read_file(root_ / "b"), "12");
}

TEST_F(Staging, WithoutCommitNothingIsLeft) {
  {
    StagedFiles files;
    put(files.add(root_ / "a"), "1");
    AtomicFolder folder(root_ / "folder");
    put(folder.path() / "b", "2");
  }
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(Staging, AFolderIsMergedIntoWhatStands) {
  fs::create_directories(root_ / "data");
  put(root_ / "data" / "train", "old");
  put(root_ / "data" / "kept", "kept");
  AtomicFolder folder(root_ / "data");
  put(folder.path() / "train", "new");
  folder.merge();
  EXPECT_EQ(read_file(root_ / "data" / "train"), "new");
  EXPECT_EQ(read_file(root_ / "data" / "kept"), "kept");
  AtomicFolder fresh(root_ / "other");
  put(fresh.path() / "train", "first");
  fresh.merge();
  EXPECT_EQ(read_file(root_ / "other" / "train"), "first");
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 2);
}

TEST_F(Staging, WhatStandsIsReplacedWithConsentAlone) {
  put(root_ / "file", "x");
  fs::create_directories(root_ / "empty");
  fs::create_directories(root_ / "full" / "inside");
  EXPECT_EQ(refusal(root_ / "none", OutputKind::kFile, false), "");
  EXPECT_EQ(refusal(root_ / "empty", OutputKind::kFolder, false), "");
  EXPECT_EQ(refusal(root_ / "file", OutputKind::kFile, true), "");
  EXPECT_EQ(refusal(root_ / "file", OutputKind::kFile, false),
            "[here] \"" + (root_ / "file").string() + "\" is there already; --overwrite replaces it");
  EXPECT_THAT(refusal(root_ / "full", OutputKind::kFolder, false), HasSubstr("is there already"));
  EXPECT_THAT(refusal(root_ / "file", OutputKind::kFolder, true), HasSubstr("is a file; a folder is written"));
  EXPECT_THAT(refusal(root_ / "empty", OutputKind::kFile, true), HasSubstr("is a folder; a file is written"));
}

}  // namespace
}  // namespace levin
