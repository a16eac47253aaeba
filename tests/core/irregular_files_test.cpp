// What is no regular file is refused at once: nobody may be waiting at its other end.
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/regular_file.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class IrregularFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    // A read that waits would wait for ever.
    ::alarm(120);
    root_ = fs::temp_directory_path() / fmt::format("levin_irregular_{}", ::getpid());
    fs::create_directories(root_);
  }
  void TearDown() override {
    fs::remove_all(root_);
    ::alarm(0);
  }
  static std::string refusal(const fs::path& path) {
    try {
      (void)read_file(path);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  fs::path root_;
};

TEST_F(IrregularFiles, AreRefusedByKind) {
  const auto fifo = root_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(refusal(fifo), fmt::format("[file] \"{}\" is a FIFO; only regular files are read", fifo.string()));
  fs::create_symlink(fifo, root_ / "link");
  EXPECT_THAT(refusal(root_ / "link"), HasSubstr("is a FIFO"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("is a device"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("is a device"));
  EXPECT_THAT(refusal(root_), HasSubstr("Is a directory"));
  const auto place = root_ / "socket";
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(place.string().size(), sizeof(address.sun_path));
  place.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_THAT(refusal(place), HasSubstr("is a socket"));
  ::close(socket);
}

TEST_F(IrregularFiles, ALibraryGetsTheFileThatWasOpened) {
  write_file(root_ / "file", "first");
  const detail::PinnedFile pinned(root_ / "file");
  write_file(root_ / "file", "second one");
  EXPECT_EQ(read_file(pinned.name()), "first");
}

}  // namespace
}  // namespace levin
