#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/testing/probe.h"

namespace {

// Before the first test, so that it is there when one crashes or hangs. gtest's brief output has no such line.
class OrderLine final : public testing::EmptyTestEventListener {
  void OnTestProgramStart(const testing::UnitTest& program) override {
    if (!GTEST_FLAG_GET(shuffle)) return;
    std::printf("Shuffled; the same order again: --gtest_shuffle --gtest_random_seed=%d\n", program.random_seed());
    std::fflush(stdout);
  }
};

/// A line for a test that was skipped, with its reason: what continuous integration looks at. At the end of the test:
/// while a part is told, gtest holds the lock by which it would say which test it is.
void tell_skipped(const testing::TestInfo& test) {
  const auto& result = *test.result();
  for (int i = 0; i < result.total_part_count(); ++i)
    if (const auto& part = result.GetTestPartResult(i); part.skipped())
      std::printf("skipped: %s.%s: %s\n", test.test_suite_name(), test.name(), part.message());
  std::fflush(stdout);
}
class SkippedLines final : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override { tell_skipped(test); }
};

// What a test that runs in a process of its own prints: gtest's lines without the frame around them.
class OneTest final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.passed()) return;
    std::printf("%s:%d: %s\n%s\n", part.file_name() ? part.file_name() : "unknown file", part.line_number(),
                part.skipped() ? "Skipped" : "Failure", part.message());
    std::fflush(stdout);
  }
  void OnTestEnd(const testing::TestInfo& test) override {
    tell_skipped(test);
    const auto& result = *test.result();
    const char* word = result.Failed() ? "[  FAILED  ]" : result.Skipped() ? "[  SKIPPED ]" : "[       OK ]";
    if (result.Failed() || !GTEST_FLAG_GET(brief))
      std::printf("%s %s.%s (%lld ms)\n", word, test.test_suite_name(), test.name(),
                  static_cast<long long>(result.elapsed_time()));
    std::fflush(stdout);
  }
};

/// The tests that the flags and the sharding variables select. Listing them makes gtest select, and runs nothing.
std::vector<std::string> selected_tests() {
  std::fflush(stdout);
  const int terminal = ::dup(STDOUT_FILENO), nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  ::dup2(nowhere, STDOUT_FILENO);
  GTEST_FLAG_SET(list_tests, true);
  const int listed = RUN_ALL_TESTS();
  GTEST_FLAG_SET(list_tests, false);
  std::fflush(stdout);
  ::dup2(terminal, STDOUT_FILENO);
  ::close(terminal);
  ::close(nowhere);
  std::vector<std::string> names;
  const auto& program = *testing::UnitTest::GetInstance();
  for (int s = 0; listed == 0 && s < program.total_test_suite_count(); ++s) {
    const auto& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t)
      if (suite.GetTestInfo(t)->should_run())
        names.push_back(std::string(suite.name()) + "." + suite.GetTestInfo(t)->name());
  }
  return names;
}

/// Whether a test is about a GPU, as its name or its program's says. Others do not see one: with it autograd starts a
/// thread for each device, and a test that has run a backward could not fork ranks.
bool concerns_gpu(const std::string& name) {
  for (const char* word : {"Gpu", "GPU", "Cuda", "CUDA", "Nccl"})
    if (name.find(word) != std::string::npos) return true;
  return std::string(program_invocation_short_name).find("_gpu_") != std::string::npos;
}

int run_as_child(const std::string& name) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (!concerns_gpu(name)) ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  ::unsetenv("GTEST_TOTAL_SHARDS");  // the parent has applied them
  ::unsetenv("GTEST_SHARD_INDEX");
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new OneTest);
  GTEST_FLAG_SET(filter, name);
  return RUN_ALL_TESTS();
}

/// Each test in a process of its own, forked from one that has used neither CUDA nor autograd's threads: tests fork
/// ranks, and a process that has used either cannot fork one that uses it too.
int run_each_in_a_process(const std::vector<std::string>& names) {
  std::vector<std::string> failed;
  for (const auto& name : names) {
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int code = run_as_child(name);
      std::fflush(nullptr);
      ::_exit(code);  // the end of LibTorch's globals costs half a second
    }
    int status = 0;
    if (pid < 0 || ::waitpid(pid, &status, 0) != pid) return 1;
    if (WIFSIGNALED(status)) std::printf("[  FAILED  ] %s (ended by signal %d)\n", name.c_str(), WTERMSIG(status));
    if (status != 0) failed.push_back(name);
  }
  std::printf("[==========] %zu tests ran, each in a process of its own.\n[  PASSED  ] %zu tests.\n", names.size(),
              names.size() - failed.size());
  if (!failed.empty()) std::printf("[  FAILED  ] %zu tests, listed below:\n", failed.size());
  for (const auto& name : failed) std::printf("[  FAILED  ] %s\n", name.c_str());
  std::fflush(stdout);
  return failed.empty() ? 0 : 1;
}

}  // namespace

// epoll_wait of the C library, in test programs alone: a thread that sees the same event twice in a row yields. Gloo's
// thread leaves an event alone while another one has the connection's lock, and asks again at once. Ranks of tests have
// fewer cores than threads, so the other one waits for the core on which Gloo's spins: a third of the time of such
// tests. LibTorch calls epoll_wait through its table of symbols, where that of the program comes first.
extern "C" int epoll_wait(int epoll, epoll_event* events, int size, int timeout) {
  thread_local const void* before = nullptr;
  const int count = ::epoll_pwait(epoll, events, size, timeout, nullptr);
  const void* now = count > 0 ? events[0].data.ptr : nullptr;
  if (now && now == before) ::sched_yield();
  before = now;
  return count;
}

// The main of every test program.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const int status = levin::testing::run_probe({argv, argv + argc}); status >= 0) return status;
  if (::access("/dev/nvidiactl", F_OK) == 0 && !GTEST_FLAG_GET(list_tests))
    if (const auto names = selected_tests(); names.size() > 1) return run_each_in_a_process(names);
  testing::UnitTest::GetInstance()->listeners().Append(new OrderLine);
  testing::UnitTest::GetInstance()->listeners().Append(new SkippedLines);
  return RUN_ALL_TESTS();
}
