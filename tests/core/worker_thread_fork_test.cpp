// Threads and forked children: a child neither hangs nor ends, and its parent is not disturbed.
#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/worker_thread.h"
#include "levin/testing/forked.h"

namespace levin::detail {
namespace {

using ::testing::HasSubstr;
using testing::in_a_child;

TEST(WorkerThreadAfterFork, AChildHasAThreadOfItsOwn) {
  WorkerThread thread;
  int done = 0;
  thread.run([&] { ++done; });
  thread.join();
  EXPECT_EQ(in_a_child([&] {
              thread.run([&] { done += 10; });
              thread.join();
              return std::to_string(done);
            }),
            "11");
  thread.run([&] { ++done; });
  thread.join();
  EXPECT_EQ(done, 2);
}

TEST(WorkerThreadAfterFork, WorkOfTheParentIsAnErrorInTheChild) {
  WorkerThread thread;
  std::mutex mutex;
  std::condition_variable changed;
  bool begun = false, ends = false;
  thread.run([&] {
    std::unique_lock lock(mutex);
    begun = true;
    changed.notify_all();
    changed.wait(lock, [&] { return ends; });
  });
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return begun; });
  }
  EXPECT_THAT(in_a_child([&] {
                thread.join();
                return std::string("no error");
              }),
              HasSubstr("fork between steps"));
  {
    const std::lock_guard lock(mutex);
    ends = true;
  }
  changed.notify_all();
  thread.join();
}

TEST(WorkerThreadAfterFork, OneOfTheParentCanBeDestroyedInAChild) {
  auto thread = std::make_unique<WorkerThread>();
  std::atomic<bool> ends = false;
  thread->run([&] { ends.wait(false); });
  EXPECT_EQ(in_a_child([&] {
              thread.reset();
              return std::string("gone");
            }),
            "gone");
  ends = true;
  ends.notify_all();
  thread->join();
}

}  // namespace
}  // namespace levin::detail
