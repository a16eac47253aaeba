#include "levin/core/files.h"

#include <array>
#include <csignal>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

using testing::error_of;
namespace fs = std::filesystem;

/// An empty folder with a difficult name, for one test.
class FilesTest : public testing::FolderTest {
 protected:
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST(Checksum, KnownValuesAndTheTwinAgree) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(checksum_text(crc32c("123456789")), "e3069283");
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text.push_back(static_cast<char>(i * 37 + i / 7));
    ASSERT_EQ(crc32c(text), detail::crc32c_portable(std::as_bytes(std::span(text)), 0)) << i;
  }
  EXPECT_EQ(crc32c(text.substr(333), crc32c(text.substr(0, 333))), crc32c(text));
  // Long enough for several lanes, and for what is left behind them.
  while (text.size() < 40'000) text += static_cast<char>(text.size() * text.size() / 5);
  for (const size_t length : {2047, 6143, 6144, 6145, 6151, 12'288, 18'431, 39'999})
    for (const size_t first : {0, 1, 8}) {
      const auto part = std::string_view(text).substr(first, length);
      const auto twin = detail::crc32c_portable(std::as_bytes(std::span(part)), 7);
      ASSERT_EQ(crc32c(part, 7), twin) << length << " bytes from " << first;
    }
}

TEST_F(FilesTest, WritesAndReads) {
  const auto path = folder_ / "file.txt";
  write_file(path, "one");
  write_file(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(names(), std::vector<std::string>{"file.txt"});
  EXPECT_NE(error_of([&] { read_file(path, 2); }).find("has 3 bytes, at most 2 are read"), std::string::npos);
}

TEST_F(FilesTest, LargeWritesGoThroughWhole) {
  const std::string large((size_t{3} << 20) + 17, 'x');
  {
    FileWriter writer(folder_ / "large");
    writer.write("head");
    writer.write(large);
    writer.write("tail");
    EXPECT_EQ(writer.size(), large.size() + 8);
    writer.close();
  }
  EXPECT_EQ(read_file(folder_ / "large"), "head" + large + "tail");
}

TEST_F(FilesTest, WithoutCommitNothingChanges) {
  write_file(folder_ / "file", "old");
  {
    AtomicFile file(folder_ / "file");
    file.write("new");
  }
  {
    AtomicFolder folder(folder_ / "folder");
    write_file(folder.path() / "a", "1");
  }
  EXPECT_EQ(read_file(folder_ / "file"), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

TEST_F(FilesTest, FoldersAreReplacedWhole) {
  for (const std::string content : {"first", "second"}) {
    AtomicFolder folder(folder_ / "deep" / "checkpoint/");
    write_file(folder.path() / content, content);
    folder.commit();
  }
  EXPECT_EQ(read_file(folder_ / "deep/checkpoint/second"), "second");
  EXPECT_FALSE(fs::exists(folder_ / "deep/checkpoint/first"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "deep"), {}), 1);
}

TEST_F(FilesTest, ALinkToAFolderStaysALink) {
  fs::create_directories(folder_ / "real");
  fs::create_directory_symlink(folder_ / "real", folder_ / "link");
  AtomicFolder folder(folder_ / "link");
  write_file(folder.path() / "a", "1");
  folder.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_file(folder_ / "real" / "a"), "1");
}

TEST_F(FilesTest, NamesOfFullLengthWork) {
  const auto path = folder_ / std::string(255, 'n');
  write_file(path, "content");
  EXPECT_EQ(read_file(path), "content");
}

TEST_F(FilesTest, ErrorsNameThePathAndTheReason) {
  EXPECT_EQ(error_of([&] { read_file(folder_ / "none"); }),
            fmt::format("[file] cannot open \"{}\": No such file or directory", (folder_ / "none").string()));
  EXPECT_EQ(error_of([&] { read_file(folder_); }),
            fmt::format("[file] cannot read \"{}\": Is a directory", folder_.string()));
  write_file(folder_ / "file", "x");
  EXPECT_NE(error_of([&] { check_writable(folder_ / "file"); }).find("Not a directory"), std::string::npos);
  EXPECT_NE(error_of([&] { check_writable("/proc/levin"); }).find("/proc/levin"), std::string::npos);
  EXPECT_NO_THROW(check_writable(folder_ / "new" / "folder"));
}

TEST_F(FilesTest, AFullDiskIsLoudAndKeepsTheOldFile) {
  EXPECT_EQ(error_of([] {
              FileWriter writer("/dev/full");
              writer.write("x");
              writer.close();
            }),
            "[file] cannot write \"/dev/full\": No space left on device");
  write_file(folder_ / "file", "old");
  // A limit on the size of files fails in the middle of writing, as a full disk does.
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 1 << 20, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto line = error_of([&] { write_file(folder_ / "file", std::string(size_t{2} << 20, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(line.find("File too large"), std::string::npos) << line;
  EXPECT_EQ(read_file(folder_ / "file"), "old");
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

TEST_F(FilesTest, LeftoversOfADeadProcessAreRemoved) {
  write_file(folder_ / "file", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder_ / "file");
    file.write("half");
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(names().size(), 2U);
  EXPECT_EQ(read_file(folder_ / "file"), "old");
  write_file(folder_ / "file", "new");
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

TEST_F(FilesTest, AFileBeyondTheLimitOfTheProcessIsAnErrorOfAProgram) {
  const auto path = folder_ / "long";
  const auto run = [&] {
    rlimit limit{};
    limit.rlim_cur = limit.rlim_max = 4096;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::string name = "program";
    std::array<char*, 2> argv{name.data(), nullptr};
    ::_exit(run_main(1, argv.data(), [&](Args&) { write_file(path, std::string(1 << 20, 'x')); }));
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(1), "error: .file. cannot write .*File too large");
}

}  // namespace
}  // namespace levin
