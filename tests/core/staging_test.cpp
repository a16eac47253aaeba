// Files that appear together, and what may be replaced.
#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Staging : public testing::FolderTest {
 protected:
  static void put(const fs::path& path, std::string_view text) {
    FileWriter file(path);
    file.write(text);
    file.close();
  }
  std::string refusal(const fs::path& path, OutputKind kind, bool overwrite) {
    return testing::error_of([&] { check_destination("here", path, kind, overwrite, "--overwrite"); });
  }
};

TEST_F(Staging, FilesAppearTogether) {
  StagedFiles files;
  put(files.add(folder_ / "a"), "1");
  put(files.add(folder_ / "b"), "2");
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  files.commit();
  EXPECT_EQ(read_file(folder_ / "a") + read_file(folder_ / "b"), "12");
}

TEST_F(Staging, WithoutCommitNothingIsLeft) {
  {
    StagedFiles files;
    put(files.add(folder_ / "a"), "1");
    AtomicFolder folder(folder_ / "folder");
    put(folder.path() / "b", "2");
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Staging, AFolderIsMergedIntoWhatStands) {
  fs::create_directories(folder_ / "data");
  put(folder_ / "data" / "train", "old");
  put(folder_ / "data" / "kept", "kept");
  AtomicFolder folder(folder_ / "data");
  put(folder.path() / "train", "new");
  folder.merge();
  EXPECT_EQ(read_file(folder_ / "data" / "train"), "new");
  EXPECT_EQ(read_file(folder_ / "data" / "kept"), "kept");
  AtomicFolder fresh(folder_ / "other");
  put(fresh.path() / "train", "first");
  fresh.merge();
  EXPECT_EQ(read_file(folder_ / "other" / "train"), "first");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);
}

TEST_F(Staging, RemovesFilesFoldersAndLinks) {
  put(folder_ / "file", "x");
  fs::create_directories(folder_ / "folder" / "inside");
  fs::create_directory_symlink("folder", folder_ / "link");
  remove_whole(folder_ / "link");
  EXPECT_TRUE(fs::exists(folder_ / "folder" / "inside"));
  for (const char* name : {"file", "folder", "none"}) remove_whole(folder_ / name);
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(Staging, WhatTheDeadWereWritingGoesWhateverItsName) {
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFolder step(folder_ / "step-7");
    put(step.path() / "weights", "half");
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  const auto left = fs::directory_iterator(folder_)->path().filename().string();
  // What only looks like it stays, and so does a folder that was being replaced.
  const std::string looks[] = {left + ".old", left + "x", left.substr(1), ".step-7.tmp-other_host-1-0"};
  for (const auto& name : looks) fs::create_directories(folder_ / name);
  AtomicFolder next(folder_ / "step-8");
  EXPECT_FALSE(fs::exists(folder_ / left));
  EXPECT_TRUE(fs::exists(next.path())) << "of a process that lives";
  for (const auto& name : looks) EXPECT_TRUE(fs::exists(folder_ / name)) << name;
}

/// Killed at any time, a folder that is removed is there with all its files, or not at all.
TEST_F(Staging, WhatIsRemovedIsNeverThereInPart) {
  constexpr int kFiles = 400;
  int before = 0, after = 0;
  for (int delay = 0; delay < 40; ++delay) {
    const auto path = folder_ / ("checkpoint-" + std::to_string(delay));
    fs::create_directories(path);
    for (int i = 0; i < kFiles; ++i) std::ofstream(path / std::to_string(i)) << "x";
    const pid_t child = ::fork();
    if (child == 0) {
      remove_whole(path);
      ::_exit(0);
    }
    ::usleep(static_cast<useconds_t>(50 * delay));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (fs::exists(path)) {
      ++before;
      EXPECT_EQ(std::distance(fs::directory_iterator(path), {}), kFiles);
    } else {
      ++after;
    }
    remove_whole(path);
  }
  EXPECT_TRUE(fs::is_empty(folder_)) << "the rest goes with what is removed next; " << before << " " << after;
}

TEST_F(Staging, WhatStandsIsReplacedWithConsentAlone) {
  put(folder_ / "file", "x");
  fs::create_directories(folder_ / "empty");
  fs::create_directories(folder_ / "full" / "inside");
  EXPECT_EQ(refusal(folder_ / "none", OutputKind::kFile, false), "no error");
  EXPECT_EQ(refusal(folder_ / "empty", OutputKind::kFolder, false), "no error");
  EXPECT_EQ(refusal(folder_ / "file", OutputKind::kFile, true), "no error");
  EXPECT_EQ(refusal(folder_ / "file", OutputKind::kFile, false),
            "[here] \"" + (folder_ / "file").string() + "\" is there already; --overwrite replaces it");
  EXPECT_THAT(refusal(folder_ / "full", OutputKind::kFolder, false), HasSubstr("is there already"));
  EXPECT_THAT(refusal(folder_ / "file", OutputKind::kFolder, true), HasSubstr("is a file; a folder is written"));
  EXPECT_THAT(refusal(folder_ / "empty", OutputKind::kFile, true), HasSubstr("is a folder; a file is written"));
}

}  // namespace
}  // namespace levin
