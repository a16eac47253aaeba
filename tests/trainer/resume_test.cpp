// A run that is killed, anywhere and again and again, ends as the run that was left alone: the same bits in weights,
// optimizer, schedules and random generators, and the same log.
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/strategies/choice.h"
#include "tests/trainer/probe_runs.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr const char* kFirstLine = "levin: [trainer]";

/// The run that nobody disturbs, which the others are compared with.
struct Whole {
  TemporaryFolder folder;
  std::string out;
  std::string csv;
  /// From its first line to its end.
  std::chrono::steady_clock::duration time{};

  explicit Whole(const std::vector<std::string>& flags) {
    const auto run = start_probe(folder.path(), flags);
    run->wait_for(kFirstLine);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(run->wait(), 0) << run->err();
    time = std::chrono::steady_clock::now() - start;
    out = run->out();
    csv = csv_of(out);
    EXPECT_GT(std::count(csv.begin(), csv.end(), '\n'), 20);
  }
};

struct Point {
  std::string event;
  int64_t count;
};

/// One folder in which runs are killed, and resumed, until one is left alone.
class Series {
 public:
  Series(const Whole& whole, std::vector<std::string> flags) : whole_(whole), flags_(std::move(flags)) {}

  /// Whether the run died there. One that never came there has ended as if nothing had been asked.
  bool dies_at(const Point& point, int rank = 0) {
    auto flags = next_flags();
    const auto at = point.event + ":" + std::to_string(point.count) + ":KILL";
    flags.insert(flags.end(), {"--at", at, "--rank", std::to_string(rank)});
    history_ += " " + at + (rank ? "@" + std::to_string(rank) : "");
    const auto run = start_probe(folder_.path(), flags);
    return died(*run);
  }

  bool dies_after(std::chrono::milliseconds time) {
    history_ += " " + std::to_string(time.count()) + "ms";
    const auto run = start_probe(folder_.path(), next_flags());
    run->wait_for(kFirstLine);
    std::this_thread::sleep_for(time);
    run->signal(SIGKILL);
    return died(*run);
  }

  void ends_like_the_whole() {
    if (ended_) return;
    const auto run = start_probe(folder_.path(), next_flags());
    EXPECT_FALSE(died(*run)) << run->err();
  }

 private:
  std::vector<std::string> next_flags() {
    auto flags = flags_;
    flags.emplace_back("--ckpt_path");
    // "last" takes those that are made to be resumed from; the others must do as well.
    const auto all = whole_checkpoints(folder_.path() / "checkpoints");
    const bool newest = ++starts_ % 2 == 0 && !all.empty();
    flags.push_back(newest ? all.back().string() : "last");
    history_ += newest ? " | " + all.back().filename().string() : " | last";
    return flags;
  }

  bool died(Process& run) {
    const int status = run.wait();
    if (status == 128 + SIGKILL) return true;
    EXPECT_EQ(status, 0) << history_ << "\n" << run.err();
    if (status != 0) return false;
    ended_ = true;
    EXPECT_EQ(final_difference(whole_.folder.path(), folder_.path()), "") << history_;
    EXPECT_EQ(csv_of(run.out()), whole_.csv) << history_;
    return false;
  }

  const Whole& whole_;
  std::vector<std::string> flags_;
  TemporaryFolder folder_;
  std::string history_;
  int starts_ = 0;
  bool ended_ = false;
};

const std::vector<std::string> kEvents{"forward",   "backward", "batch_end", "val_batch", "sanity_batch",
                                       "epoch_end", "save",     "file",      "rename"};

/// --gtest_random_seed=N makes the random places others.
unsigned other_places() {
  return static_cast<unsigned>(GTEST_FLAG_GET(random_seed)) * 100;
}

/// Draws points until that many runs have died; a series continues for a few deaths.
void die_often(const Whole& whole, const std::vector<std::string>& flags, int deaths, unsigned seed, int ranks = 1) {
  std::mt19937 draw(seed + other_places());
  const auto below = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, std::max<int64_t>(n, 1) - 1)(draw);
  };
  for (int died = 0; died < deaths;) {
    Series series(whole, flags);
    for (int i = 0; i < 8 && died < deaths; ++i) {
      const auto& event = kEvents[static_cast<size_t>(below(static_cast<int64_t>(kEvents.size())))];
      const auto count = 1 + below(event_count(whole.out, event) / 3);
      if (!series.dies_at({event, count}, static_cast<int>(below(ranks)))) break;
      ++died;
    }
    series.ends_like_the_whole();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Resume, ExactAtEveryKindOfPlace) {
  const std::vector<std::string> flags{"--scheduler", "step"};
  const Whole whole(flags);
  // In the middle of a window of accumulation, of a validation (one of them inside a window), between the files of a
  // checkpoint, before and after its name is there, at the end of an epoch.
  const std::vector<std::vector<Point>> all{
      {{"batch_end", 1}, {"batch_end", 3}, {"val_batch", 2}, {"val_batch", 8}, {"epoch_end", 1}},
      {{"file", 1}, {"file", 2}, {"file", 3}, {"file", 9}, {"file", 14}, {"file", 20}},
      {{"rename", 1}, {"rename", 2}, {"rename", 3}, {"rename", 4}, {"rename", 11}, {"rename", 12}},
      {{"save", 1}, {"save", 2}, {"backward", 2}, {"forward", 9}, {"epoch_end", 1}, {"batch_end", 10}}};
  for (const auto& points : all) {
    Series series(whole, flags);
    for (const auto& point : points) EXPECT_TRUE(series.dies_at(point)) << point.event << " " << point.count;
    series.ends_like_the_whole();
  }
}

TEST(Resume, ExactAtRandomPlaces) {
  const std::vector<std::string> flags{"--scheduler", "step"};
  const Whole whole(flags);
  die_often(whole, flags, 14, 1);
}

TEST(Resume, ExactWithASchedulerThatFollowsValidation) {
  const std::vector<std::string> flags{"--scheduler", "plateau"};
  const Whole whole(flags);
  die_often(whole, flags, 8, 2);
}

TEST(Resume, ExactWithASchedulerThatFollowsEachStep) {
  const std::vector<std::string> flags{"--scheduler", "plateau_step"};
  const Whole whole(flags);
  die_often(whole, flags, 8, 3);
}

TEST(Resume, ExactWhenTheLastStepIsInTheMiddleOfAnEpoch) {
  const std::vector<std::string> flags{"--scheduler", "plateau_step", "--max_steps", "9"};
  const Whole whole(flags);
  for (const std::vector<Point>& points :
       {std::vector<Point>{{"epoch_end", 2}}, std::vector<Point>{{"batch_end", 14}, {"epoch_end", 1}}}) {
    Series series(whole, flags);
    for (const auto& point : points) EXPECT_TRUE(series.dies_at(point));
    series.ends_like_the_whole();
  }
}

TEST(Resume, ExactAtRandomTimes) {
  const std::vector<std::string> flags{"--scheduler", "step"};
  const Whole whole(flags);
  std::mt19937 draw(4 + other_places());
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(whole.time).count();
  for (int died = 0; died < 8 && !HasFailure();) {
    Series series(whole, flags);
    while (died < 8 &&
           series.dies_after(std::chrono::milliseconds(std::uniform_int_distribution<int64_t>(0, limit)(draw))))
      ++died;
    series.ends_like_the_whole();
  }
}

TEST(Resume, ExactOnTwoRanks) {
  const std::vector<std::string> flags{"--scheduler", "step", "--devices", "2"};
  const Whole whole(flags);
  die_often(whole, flags, 6, 5, 2);
}

struct RankCase {
  std::string strategy;
  std::string ranks;

  friend void PrintTo(const RankCase& c, std::ostream* out) { *out << c.strategy << " on " << c.ranks; }
};
class ResumeOnRanks : public ::testing::TestWithParam<RankCase> {};

// With three ranks and more the order of a sum shows in its bits.
TEST_P(ResumeOnRanks, Exact) {
  const std::vector<std::string> flags{"--max_steps",       "8",           "--devices", GetParam().ranks, "--strategy",
                                       GetParam().strategy, "--scheduler", "step"};
  const Whole whole(flags);
  Series series(whole, flags);
  EXPECT_TRUE(series.dies_at({"batch_end", 9}, 1));
  series.ends_like_the_whole();
}

/// LEVIN_ALL_RESUMES=1: every strategy that needs no model of its own, on 2, 3 and 4 ranks, and not a sample.
std::vector<RankCase> rank_cases() {
  if (!std::getenv("LEVIN_ALL_RESUMES"))
    return {{"ddp", "3"},
            {"ddp", "4"},
            {"ddp_static_graph", "3"},
            {"fsdp", "3"},
            {"deepspeed_stage_1", "3"},
            {"deepspeed_stage_2", "4"},
            {"deepspeed_stage_3", "3"},
            {"deepspeed_stage_3_offload", "3"},
            {"colossalai", "3"}};
  std::vector<RankCase> all;
  for (const auto& name : known_strategies())
    if (name.starts_with("ddp") || name.starts_with("fsdp") || name.starts_with("deepspeed") || name == "colossalai" ||
        name == "model_parallel")
      for (const char* ranks : {"2", "3", "4"}) all.push_back({name, ranks});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Strategies, ResumeOnRanks, ::testing::ValuesIn(rank_cases()),
                         [](const auto& one) { return one.param.strategy + "_" + one.param.ranks; });

TEST(Resume, ExactWhereEachRankWritesItsShard) {
  const std::vector<std::string> flags{"--scheduler", "step", "--devices", "2", "--strategy", "fsdp"};
  const Whole whole(flags);
  EXPECT_TRUE(checkpoint_info(whole.folder.path() / "final.ckpt").sharded);
  die_often(whole, flags, 4, 11, 2);
}

}  // namespace
}  // namespace levin::testing
