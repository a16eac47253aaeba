// epoll_wait of test programs (levin/testing/main.cpp).
#include <cerrno>
#include <string>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace levin {
namespace {

TEST(GlooWait, LibTorchCallsThatOfTheProgram) {
  auto* function = dlsym(RTLD_DEFAULT, "epoll_wait");
  ASSERT_NE(function, nullptr) << dlerror();
  Dl_info found, own;
  ASSERT_NE(dladdr(function, &found), 0);
  ASSERT_NE(dladdr(reinterpret_cast<const void*>(&epoll_wait), &own), 0);
  EXPECT_EQ(found.dli_fbase, own.dli_fbase) << found.dli_fname;
  EXPECT_NE(std::string(found.dli_fname).find("distributed_test"), std::string::npos) << found.dli_fname;
}

TEST(GlooWait, AnswersAsTheLibraryOfCDoes) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, 0), 0);
  const int epoll = ::epoll_create1(0);
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &event}};
  ASSERT_EQ(::epoll_ctl(epoll, EPOLL_CTL_ADD, pipe[0], &event), 0);
  epoll_event found[2] = {};
  const auto wait = [&](int milliseconds) {  // a signal of another test may end it early
    int count = 0;
    do {
      count = ::epoll_wait(epoll, found, 2, milliseconds);
    } while (count == -1 && errno == EINTR);
    return count;
  };
  EXPECT_EQ(wait(0), 0) << "nothing is there";
  ASSERT_EQ(::write(pipe[1], "x", 1), 1);
  for (int time = 0; time < 3; ++time) {  // nobody reads: the same event every time
    EXPECT_EQ(wait(-1), 1);
    EXPECT_EQ(found[0].data.ptr, &event);
    EXPECT_EQ(found[0].events, static_cast<uint32_t>(EPOLLIN));
  }
  char byte = 0;
  ASSERT_EQ(::read(pipe[0], &byte, 1), 1);
  EXPECT_EQ(wait(1), 0);
  for (const int file : {pipe[0], pipe[1], epoll}) ::close(file);
  errno = 0;
  EXPECT_EQ(wait(0), -1);
  EXPECT_EQ(errno, EBADF);
}

}  // namespace
}  // namespace levin
