#include "levin/core/parallel.h"

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace levin {
namespace {

/// That many threads for torch, and as many as before afterwards.
struct ParallelThreads {
  explicit ParallelThreads(int count) : before(at::get_num_threads()) { at::set_num_threads(count); }
  ~ParallelThreads() { at::set_num_threads(before); }
  int before;
};

TEST(ParallelFor, TakesEveryElementOnce) {
  const ParallelThreads threads(3);
  for (const int64_t count : {0, 1, 7, 64, 1000})
    for (const int64_t grain : {0, 1, 10, 5000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      parallel_for(5, 5 + count, grain, [&](int64_t from, int64_t to) {
        EXPECT_LT(from, to);
        EXPECT_TRUE(to - from >= std::min(grain, count) || to == 5 + count);
        for (int64_t i = from; i < to; ++i) ++seen[static_cast<size_t>(i - 5)];
      });
      for (const auto& each : seen) ASSERT_EQ(each, 1) << count << " " << grain;
    }
}

TEST(ParallelFor, HasSeveralThreads) {
  const ParallelThreads threads(2);
  std::atomic<int> inside = 0;
  bool together = false;
  parallel_for(0, 2, 1, [&](int64_t, int64_t) {
    ++inside;
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (inside < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    if (inside == 2) together = true;
  });
  EXPECT_TRUE(together);
}

TEST(ParallelFor, IsOneCallWithinItself) {
  const ParallelThreads threads(2);
  std::atomic<int> calls = 0;
  parallel_for(0, 4, 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) parallel_for(0, 100, 1, [&](int64_t, int64_t) { ++calls; });
  });
  EXPECT_EQ(calls, 4);
}

TEST(ParallelFor, ThrowsWhatTheBodyThrows) {
  const ParallelThreads threads(2);
  EXPECT_THROW(parallel_for(0, 10, 1,
                            [](int64_t from, int64_t) {
                              if (from >= 5) throw std::runtime_error("no");
                            }),
               std::runtime_error);
}

}  // namespace
}  // namespace levin
