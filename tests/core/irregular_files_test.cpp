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
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

class IrregularFiles : public testing::FolderTest {
 protected:
  void SetUp() override {
    // A read that waits would wait for ever.
    ::alarm(120);
  }
  void TearDown() override { ::alarm(0); }
  static std::string refusal(const fs::path& path) {
    return error_of([&] { (void)read_file(path); });
  }
};

TEST_F(IrregularFiles, AreRefusedByKind) {
  const auto fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(refusal(fifo), fmt::format("[file] \"{}\" is a FIFO; only regular files are read", fifo.string()));
  fs::create_symlink(fifo, folder_ / "link");
  EXPECT_THAT(refusal(folder_ / "link"), HasSubstr("is a FIFO"));
  EXPECT_THAT(refusal("/dev/zero"), HasSubstr("is a device"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("is a device"));
  EXPECT_THAT(refusal(folder_), HasSubstr("Is a directory"));
  const auto place = folder_ / "socket";
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
  write_file(folder_ / "file", "first");
  const detail::PinnedFile pinned(folder_ / "file");
  write_file(folder_ / "file", "second one");
  EXPECT_EQ(read_file(pinned.name()), "first");
}

}  // namespace
}  // namespace levin
