// Ranks that wait for each other, hang, or are stopped: all others say so within seconds.
#include "levin/distributed/watch.h"

#include <csignal>
#include <filesystem>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unistd.h>

#include "levin/testing/error_of.h"
#include "levin/testing/eventually.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using namespace std::chrono_literals;
using detail::find_deadlock;
using detail::GroupSnapshot;
using detail::RankSnapshot;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::RanksOptions;
using testing::run_ranks;

using States = std::vector<std::optional<RankSnapshot>>;

GroupSnapshot group(std::vector<int> members, int64_t checked, int64_t begun, const std::string& name = "all") {
  GroupSnapshot all{name, std::move(members), checked};
  all.begun = begun;
  return all;
}

GroupSnapshot in_meeting(GroupSnapshot of, double age, const std::string& what) {
  of.meeting = GroupSnapshot::Operation{of.checked, age, what};
  return of;
}

GroupSnapshot in_data(GroupSnapshot of, double age, const std::string& what) {
  of.pending.push_back({of.begun, age, what});
  return of;
}

RankSnapshot rank(std::vector<GroupSnapshot> groups, const std::string& place = "") {
  RankSnapshot state;
  state.tick = 1;
  state.place = place;
  state.groups = std::move(groups);
  return state;
}

TEST(Deadlock, IsRanksThatWaitInDifferentOperations) {
  const States states{rank({in_data(group({0, 1}, 4, 7), 5, "all_reduce of 40 bytes")}, "batch 3"),
                      rank({in_meeting(group({0, 1}, 5, 6), 5, "barrier")}, "its loader ended")};
  EXPECT_EQ(find_deadlock(states, 3),
            "[all_reduce] the ranks wait for each other: rank 0 in all_reduce of 40 bytes (batch 3), rank 1 in barrier "
            "(its loader ended)");
  EXPECT_EQ(find_deadlock(states, 6), "");  // too young to tell
}

TEST(Deadlock, IsNotARankThatComputes) {
  EXPECT_EQ(
      find_deadlock(States{rank({in_data(group({0, 1}, 4, 7), 50, "all_reduce")}), rank({group({0, 1}, 4, 6)})}, 3),
      "");
  // Nor one of which nothing is known, nor data that are on their way.
  EXPECT_EQ(find_deadlock(States{rank({in_data(group({0, 1}, 4, 7), 50, "all_reduce")}), std::nullopt}, 3), "");
  EXPECT_EQ(find_deadlock(States{rank({in_data(group({0, 1}, 4, 7), 50, "all_reduce")}),
                                 rank({in_data(group({0, 1}, 4, 7), 50, "all_reduce")})},
                          3),
            "");
}

TEST(Deadlock, IsNotAChainThatEndsAtARankOnItsWay) {
  const States states{rank({in_data(group({0, 1}, 0, 1, "a"), 9, "x"), group({0, 2}, 0, 0, "c")}),
                      rank({group({0, 1}, 0, 0, "a"), in_data(group({1, 2}, 0, 1, "b"), 9, "y")}),
                      rank({group({1, 2}, 0, 0, "b"), group({0, 2}, 0, 0, "c")})};
  EXPECT_EQ(find_deadlock(states, 3), "");
}

TEST(Deadlock, MayGoThroughSeveralGroups) {
  const States states{rank({in_data(group({0, 1}, 0, 1, "a"), 9, "x"), group({0, 2}, 0, 0, "c")}),
                      rank({group({0, 1}, 0, 0, "a"), in_data(group({1, 2}, 0, 1, "b"), 9, "y")}),
                      rank({group({1, 2}, 0, 0, "b"), in_data(group({0, 2}, 0, 1, "c"), 9, "z")})};
  EXPECT_EQ(find_deadlock(states, 3), "[x] the ranks wait for each other: rank 0 in x, rank 1 in y, rank 2 in z");
}

TEST(Deadlock, IsTheSamePlaceInTheOrderWithAnotherOperation) {
  const States states{rank({in_data(group({0, 1}, 0, 7), 9, "all_gather of 40 bytes")}),
                      rank({in_data(group({0, 1}, 0, 7), 9, "all_gather of 80 bytes")})};
  EXPECT_THAT(find_deadlock(states, 3),
              HasSubstr("rank 0 in all_gather of 40 bytes, rank 1 in all_gather of 80 bytes"));
}

TEST(Deadlock, IsNotTheSameOperationUnderAnotherName) {
  const States states{rank({in_data(group({0, 1}, 0, 7), 9, "all_reduce of 40 bytes")}),
                      rank({in_data(group({0, 1}, 0, 7), 9, "ddp.join: all_reduce of 40 bytes")})};
  EXPECT_EQ(find_deadlock(states, 3), "");
}

TEST(Snapshots, TravelAsText) {
  auto state = rank({in_data(in_meeting(group({0, 2}, 3, 4), 1.5, "barrier"), 2.5, "x")}, "batch 3");
  state.doing = "forward";
  state.doing_age = 3;
  const auto back = RankSnapshot::from_text(state.to_text());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->to_text(), state.to_text());
  EXPECT_EQ(back->groups[0].members, (std::vector<int>{0, 2}));
  EXPECT_FALSE(RankSnapshot::from_text("{}"));
  EXPECT_FALSE(RankSnapshot::from_text("no"));
}

size_t threads() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

// A thread of a test before may still be ending when they are counted first.
TEST(Watch, LeavesNoThreadBehind) {
  const auto before = threads();
  {
    const detail::RankWatch watch(c10::make_intrusive<c10d::HashStore>(), 0, 2, {.beat = 10ms});
    EXPECT_GE(threads(), 3U);  // two and this one
  }
  EXPECT_TRUE(testing::eventually([&] { return threads() <= before; })) << threads() << " threads, not " << before;
}

/// The timeout of operations is far away: what ends these runs is not that.
RanksOptions watched() {
  RanksOptions options;
  options.collective.timeout = 300s;
  options.errors_expected = true;
  return options;
}

void all_reduce(Collective& ranks, int64_t numel) {
  ranks.run("ddp", [&](c10d::ProcessGroup& group) {
    std::vector<Tensor> tensors{at::ones({numel})};
    group.allreduce(tensors)->wait();
  });
}

TEST(Watch, NamesRanksThatWaitForEachOther) {
  const auto results = run_ranks(
      2,
      [](Collective& ranks) {
        all_reduce(ranks, 10);
        ranks.note_place(ranks.rank() == 0 ? "batch 3 of its dataloader" : "its dataloader ended after 3 batches");
        if (ranks.rank() == 0)
          all_reduce(ranks, 10);
        else
          ranks.barrier("end of epoch");
      },
      watched());
  for (const auto& result : results)
    EXPECT_EQ(result.error,
              "[ddp] the ranks wait for each other: rank 0 in ddp: all_reduce of 40 bytes (batch 3 of its dataloader), "
              "rank 1 in barrier \"end of epoch\" (its dataloader ended after 3 batches)");
}

// Two buffers of different sizes that meet on one Gloo connection end the process.
TEST(Watch, NamesOperationsOfDifferentSizes) {
  const auto results = run_ranks(
      2, [](Collective& ranks) { all_reduce(ranks, ranks.rank() == 0 ? 10 : 20); }, watched());
  for (const auto& result : results) {
    EXPECT_EQ(result.signal, 0);
    EXPECT_THAT(result.error, AllOf(HasSubstr("rank 0 in ddp: all_reduce of 40 bytes"),
                                    HasSubstr("rank 1 in ddp: all_reduce of 80 bytes")));
  }
}

TEST(Watch, OperationsOfDifferentNamesMeet) {
  run_ranks(2, [](Collective& ranks) {
    std::vector<Tensor> tensors{at::ones({10})};
    ranks.run(ranks.rank() == 0 ? "ddp" : "ddp.join", [&](c10d::ProcessGroup& all) { all.allreduce(tensors)->wait(); });
    EXPECT_EQ(tensors[0].sum().item<float>(), 20);
  });
}

TEST(Watch, EndsASubgroupAndTheOtherRanksWithIt) {
  const auto results = run_ranks(
      3,
      [](Collective& ranks) {
        const auto pair = split_group(ranks, {{0, 1}, {2}}, "pair");
        if (ranks.rank() == 0) all_reduce(*pair, 10);
        ranks.barrier("later");
      },
      watched());
  for (const auto& result : results) EXPECT_THAT(result.error, HasSubstr("the ranks wait for each other"));
}

/// What this process writes to stderr, from here on, goes to a pipe.
struct Heard {
  int ends[2] = {-1, -1};
  Heard() {
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  }
  void listen() const { ::dup2(ends[1], STDERR_FILENO); }
  std::string line() const {
    std::string text;
    for (char c; ::read(ends[0], &c, 1) == 1 && c != '\n';) text += c;
    return text;
  }
};

TEST(Watch, SaysWhatASlowRankDoes) {
  const Heard heard;
  auto options = watched();
  options.collective.wait_warning = 1s;
  options.errors_expected = false;
  const auto results = run_ranks(
      2,
      [&](Collective& ranks) -> std::string {
        std::string line;
        if (ranks.rank() == 0) {
          heard.listen();
        } else {
          ranks.note_place("batch 3 of its train_dataloader");
          ranks.note_doing("forward of unit \"block3\"");
          line = heard.line();  // it computes until rank 0 has complained
        }
        ranks.barrier();
        return line;
      },
      options);
  EXPECT_THAT(
      results[1].text,
      AllOf(HasSubstr("levin: warning: [barrier] rank 0 has waited for "),
            HasSubstr(" s: rank 1 has been in forward of unit \"block3\" (batch 3 of its train_dataloader) for ")));
}

TEST(Watch, NamesARankThatIsStopped) {
  const Heard heard;
  auto options = watched();
  options.collective.wait_warning = 8s;
  options.collective.silence_timeout = 12s;
  const auto results = run_ranks(
      2,
      [&](Collective& ranks) -> std::string {
        const auto pids = gather_strings(ranks, std::to_string(::getpid()));
        if (ranks.rank() == 1) {
          ranks.note_place("batch 3 of its dataloader");
          ranks.note_doing("forward of block3");
          std::this_thread::sleep_for(2500ms);  // until it has said so to the store
          ::raise(SIGSTOP);
        }
        heard.listen();
        std::string error;
        try {
          ranks.barrier();
        } catch (const std::exception& e) {
          error = e.what();
        }
        ::kill(std::stoi(pids[1]), SIGKILL);
        return error + "\n" + heard.line();
      },
      options);
  EXPECT_THAT(results[0].text, AllOf(HasSubstr("[barrier] rank 1 has not been heard of for "),
                                     HasSubstr(" s; it may be stopped or its machine gone (last: forward of block3, "
                                               "batch 3 of its dataloader)\n"),
                                     HasSubstr("warning: [barrier] rank 0 has waited for ")));
}

/// Processes that do nothing but compute, on the core that this process is bound to for as long.
class BusyCore {
 public:
  explicit BusyCore(int processes) {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < processes; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::alarm(120);
        for (volatile uint64_t n = 0;;) n = n + 1;
      }
      pids_.push_back(pid);
    }
  }
  ~BusyCore() {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    sched_setaffinity(0, sizeof before_, &before_);
  }
  BusyCore(const BusyCore&) = delete;
  BusyCore& operator=(const BusyCore&) = delete;

 private:
  cpu_set_t before_{};
  std::vector<pid_t> pids_;
};

TEST(Watch, BlamesNobodyOnABusyCore) {
  auto options = watched();
  options.collective.silence_timeout = 3s;
  options.errors_expected = false;
  const BusyCore busy(4);
  run_ranks(
      2,
      [](Collective& ranks) {
        // A rank that computes for longer than the silence that ends a group, and one that waits for it.
        if (ranks.rank() == 1) {
          const auto end = std::chrono::steady_clock::now() + 8s;
          for (volatile uint64_t n = 0; std::chrono::steady_clock::now() < end;) n = n + 1;
        }
        ranks.barrier();
      },
      options);
}

TEST(Watch, EndsForAStoppedRankOnABusyCore) {
  auto options = watched();
  options.collective.silence_timeout = 3s;
  const BusyCore busy(4);
  const auto results = run_ranks(
      2,
      [](Collective& ranks) -> std::string {
        const auto pids = gather_strings(ranks, std::to_string(::getpid()));
        if (ranks.rank() == 1) ::raise(SIGSTOP);
        const auto begin = std::chrono::steady_clock::now();
        std::string error;
        try {
          ranks.barrier();
        } catch (const std::exception& e) {
          error = e.what();
        }
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
        ::kill(std::stoi(pids[1]), SIGKILL);
        return (waited.count() < 30 ? "in time: " : "late: ") + error;
      },
      options);
  EXPECT_THAT(results[0].text, HasSubstr("in time: [barrier] rank 1 has not been heard of for "));
}

// While the store could not be reached nobody could say that he lives, and while this process was stopped it could not
// hear of it.
TEST(Watch, ItsOwnStopIsNotSilenceOfOthers) {
  auto options = watched();
  options.collective.silence_timeout = 4s;
  options.errors_expected = false;
  run_ranks(
      2,
      [](Collective& ranks) {
        const auto pids = gather_strings(ranks, std::to_string(::getpid()));
        if (ranks.rank() == 1) {
          // Rank 0 waits, is stopped for longer than the limit, and continues beside a rank that computes.
          std::this_thread::sleep_for(4s);
          ::kill(std::stoi(pids[0]), SIGSTOP);
          std::this_thread::sleep_for(7s);
          ::kill(std::stoi(pids[0]), SIGCONT);
          std::this_thread::sleep_for(2s);
        }
        ranks.barrier();
      },
      options);
}

TEST(Watch, SaysWhatALateRankDoesAtTheTimeout) {
  auto options = watched();
  options.collective.timeout = 6s;
  options.collective.silence_timeout = 60s;
  const auto results = run_ranks(
      2,
      [](Collective& ranks) {
        if (ranks.rank() == 1) {
          ranks.note_place("batch 3 of its dataloader");
          ranks.note_doing("forward");
          std::this_thread::sleep_for(14s);
        }
        ranks.barrier("x");
      },
      options);
  EXPECT_THAT(results[0].error,
              ::testing::StartsWith("[barrier \"x\"] rank 1 did not arrive within 6 s; rank 1 has been "
                                    "in forward (batch 3 of its dataloader) for "));
}

TEST(Watch, ABarrierWithoutTimeoutWaitsLonger) {
  auto options = watched();
  options.collective.timeout = 1s;
  options.errors_expected = false;
  run_ranks(
      2,
      [](Collective& ranks) {
        if (ranks.rank() == 0) std::this_thread::sleep_for(3s);
        ranks.barrier_without_timeout("download");
        ranks.barrier();
      },
      options);
}

TEST(WatchOptions, ABeatThatIsAskedForIsTheBeat) {
  const auto fitted = [](detail::WatchOptions asked) {
    const detail::RankWatch watch(c10::make_intrusive<c10d::HashStore>(), 0, 2, asked);
    return watch.options();
  };
  const auto defaults = fitted({});
  EXPECT_EQ(*defaults.beat, 1s);
  EXPECT_EQ(defaults.stall, 3s);
  EXPECT_EQ(defaults.silence, 30s);
  const auto slow = fitted({.beat = 5s});
  EXPECT_EQ(*slow.beat, 5s);
  EXPECT_EQ(slow.stall, 15s);  // what is looked at is not older than that
  EXPECT_EQ(*fitted({.silence = 600ms}).beat, 200ms);
  EXPECT_EQ(testing::error_of([&] { fitted({.beat = 20s}); }),
            "[join] a beat of 20 s does not go with a silence timeout of 30 s: give a third of it or less");
}

TEST(Watch, SaysWhatARankDidThatHasLeft) {
  const auto results = run_ranks(
      2,
      [](Collective& ranks) {
        ranks.note_place("its dataloader ended after 3 batches");
        if (ranks.rank() == 0) ranks.barrier();
      },
      watched());
  EXPECT_EQ(results[0].error, "[barrier] rank 1 has left the group already (its dataloader ended after 3 batches)");
}

}  // namespace
}  // namespace levin
