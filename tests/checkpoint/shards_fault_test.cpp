#include <csignal>
#include <fstream>
#include <regex>

#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unistd.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/forwarding_collective.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;

/// A state whose every number is `n`, sharded evenly; `start` is what a rank says of its rows.
struct Numbered {
  Numbered(Collective& group, int64_t n) : shards(group), number(n) {
    const auto part = net->register_parameter("w", torch::full({100, 64}, static_cast<double>(n)));
    net->register_buffer("b", torch::full({3}, static_cast<double>(n)));
    place = {.sizes = {100 * group.size(), 64}, .start = 100 * group.rank()};
    shards.add(part, place);
  }
  void save(const fs::path& folder, bool full = false) {
    save_checkpoint(folder, state(), {.shards = &shards, .full = full});
  }
  State state() { return {{"model", net}, {"n", number}}; }

  std::shared_ptr<torch::nn::Module> net = std::make_shared<torch::nn::Module>();
  TensorShards shards;
  ShardPlace place;
  int64_t number;
};

/// The number, when the checkpoint is whole and all of it says the same.
int64_t number_in(const fs::path& folder) {
  const auto state = load_checkpoint(folder);
  const auto n = state.at("n").to_int();
  for (const char* name : {"w", "b"})
    EXPECT_TRUE(state.at("model").to_dict().at(name).to_tensor().eq(static_cast<double>(n)).all().item<bool>());
  return n;
}

/// A group of which this rank is killed when its turn to send comes.
class DyingGroup : public testing::ForwardingCollective {
 public:
  DyingGroup(Collective& inner, bool dies) : ForwardingCollective(inner), dies_(dies) {}
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override {
    if (dies_) ::kill(::getpid(), SIGKILL);
    ForwardingCollective::run(operation, body);
  }

 private:
  bool dies_;
};

/// As long as it lives, this process cannot make files: as another user where the test is root's, else for want of
/// descriptors.
struct NoFiles {
  NoFiles() {
    if (::getuid() == 0 && ::seteuid(65534) == 0) return;
    ::getrlimit(RLIMIT_NOFILE, &before);
    const struct rlimit none { 0, before.rlim_max };
    ::setrlimit(RLIMIT_NOFILE, &none);
    limited = true;
  }
  ~NoFiles() {
    if (limited)
      ::setrlimit(RLIMIT_NOFILE, &before);
    else
      EXPECT_EQ(::seteuid(0), 0);
  }
  bool limited = false;
  struct rlimit before {};
};

/// While it lives, no file of this process can grow beyond 4 kB.
struct SmallFiles {
  SmallFiles() {
    ::getrlimit(RLIMIT_FSIZE, &before);
    const struct rlimit small { 1 << 12, before.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() { ::setrlimit(RLIMIT_FSIZE, &before); }
  struct rlimit before {};
};

void flip_last_byte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(-1, std::ios::end);
  file.put(byte);
}

class ShardsFaultTest : public testing::FolderTest {
 protected:
  void save_number(int64_t n, const std::string& name = "c") {
    run_ranks(4, [&](Collective& group) { Numbered(group, n).save(folder_ / name); });
  }
};

TEST_F(ShardsFaultTest, ADiskThatIsFullForOneRankStopsAll) {
  for (const int full : {0, 2}) {
    save_number(1);
    const auto results = run_ranks(4, [&](Collective& group) -> std::string {
      Numbered here(group, 2);
      std::signal(SIGXFSZ, SIG_IGN);
      std::optional<SmallFiles> limit;
      if (group.rank() == full) limit.emplace();
      const auto line = error_of([&] { here.save(folder_ / "c"); });
      limit.reset();
      // The group is as good as before.
      group.barrier();
      return line;
    });
    for (const auto& result : results) {
      EXPECT_THAT(result.text, HasSubstr(fmt::format("model.rank-{0}.safetensors\": File too large (rank {0})", full)));
      EXPECT_EQ(result.text, results[0].text);
    }
    EXPECT_EQ(number_in(folder_ / "c"), 1);
    EXPECT_EQ(temporary_.entries(), 1U);
  }
}

TEST_F(ShardsFaultTest, ARankThatIsKilledWhileItWritesLeavesThePreviousCheckpoint) {
  for (const int victim : {2, 0}) {
    save_number(1);
    const auto results = run_ranks(4,
                                   [&](Collective& group) {
                                     Numbered here(group, 2);
                                     std::optional<SmallFiles> limit;
                                     if (group.rank() == victim) {
                                       std::signal(SIGXFSZ, [](int) { ::kill(::getpid(), SIGKILL); });
                                       limit.emplace();
                                     }
                                     here.save(folder_ / "c");
                                   },
                                   {.errors_expected = true});
    // Nobody takes it for saved, and everybody names the dead, perhaps beside others that left since.
    const std::regex named(fmt::format("ranks? [0-9, and]*{}", victim));
    int naming = 0;
    for (int rank = 0; rank < 4; ++rank) {
      const auto& result = results[static_cast<size_t>(rank)];
      EXPECT_EQ(result.signal, rank == victim ? SIGKILL : 0) << rank;
      EXPECT_EQ(result.error.empty(), rank == victim) << rank;
      naming += std::regex_search(result.error, named) ? 1 : 0;
    }
    EXPECT_EQ(naming, 3);
    EXPECT_EQ(number_in(folder_ / "c"), 1);
    EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "c");
    // The next save clears away what the dead left.
    save_number(3);
    EXPECT_EQ(number_in(folder_ / "c"), 3);
    EXPECT_EQ(temporary_.entries(), 1U);
  }
}

TEST_F(ShardsFaultTest, ARankKilledDuringAFullSaveLeavesThePreviousCheckpoint) {
  for (const int victim : {2, 0}) {
    save_number(1, "old");
    const auto results = run_ranks(3,
                                   [&](Collective& group) {
                                     DyingGroup dying(group, group.rank() == victim);
                                     Numbered(dying, 2).save(folder_ / "new", /*full=*/true);
                                   },
                                   {.errors_expected = true});
    for (int rank = 0; rank < 3; ++rank) {
      const auto& result = results[static_cast<size_t>(rank)];
      EXPECT_LT(result.seconds, 45) << "the timeout is 60 s, and nobody waits for it";
      if (rank == victim) {
        EXPECT_EQ(result.signal, SIGKILL);
      } else
        EXPECT_THAT(result.error, HasSubstr(fmt::format("rank {}", victim)));
    }
    EXPECT_EQ(number_in(folder_ / "old"), 1);
    // What there is of the new one has a hidden name, no manifest, and passes for nothing.
    EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "new"); }), HasSubstr("does not exist"));
    EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "old");
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename() == "old") continue;
      EXPECT_THAT(error_of([&] { load_checkpoint(entry.path()); }), HasSubstr("incomplete: it has no manifest.json"));
    }
    run_ranks(3, [&](Collective& group) { Numbered(group, 3).save(folder_ / "new", /*full=*/true); });
    EXPECT_EQ(number_in(folder_ / "new"), 3);
    EXPECT_EQ(temporary_.entries(), 2U);
    fs::remove_all(folder_ / "new");
  }
}

TEST_F(ShardsFaultTest, WhereARankCannotWriteAllAreToldAtOnce) {
  save_number(1);
  for (const bool full : {false, true}) {
    const int victim = full ? 0 : 2;
    const auto results = run_ranks(3, [&](Collective& group) -> std::string {
      Numbered here(group, 2);
      std::optional<NoFiles> forbidden;
      if (group.rank() == victim) forbidden.emplace();
      const auto line = error_of([&] { here.save(folder_ / "c", full); });
      forbidden.reset();
      group.barrier();
      return line;
    });
    for (const auto& result : results) {
      EXPECT_THAT(result.text, HasSubstr(fmt::format("(rank {})", victim)));
      EXPECT_THAT(result.text, HasSubstr(::getuid() == 0 ? "Permission denied" : "Too many open files"));
      EXPECT_EQ(result.text, results[0].text);
      EXPECT_LT(result.seconds, 45);
    }
    EXPECT_EQ(number_in(folder_ / "c"), 1);
    EXPECT_EQ(temporary_.entries(), 1U);
  }
}

TEST_F(ShardsFaultTest, ADiskThatFillsDuringAFullSaveStopsAll) {
  save_number(1);
  const auto results = run_ranks(3, [&](Collective& group) -> std::string {
    Numbered here(group, 2);
    std::signal(SIGXFSZ, SIG_IGN);
    std::optional<SmallFiles> limit;
    if (group.rank() == 0) limit.emplace();
    const auto line = error_of([&] { here.save(folder_ / "c", /*full=*/true); });
    limit.reset();
    group.barrier();
    return line;
  });
  for (const auto& result : results) {
    EXPECT_THAT(result.text, HasSubstr("model.safetensors\": File too large (rank 0)"));
    EXPECT_EQ(result.text, results[0].text);
  }
  EXPECT_EQ(number_in(folder_ / "c"), 1);
  EXPECT_EQ(temporary_.entries(), 1U);
}

TEST_F(ShardsFaultTest, ARankThatDoesNotComeIsNamed) {
  save_number(1);
  const auto results = run_ranks(2,
                                 [&](Collective& group) {
                                   if (group.rank() == 0) Numbered(group, 2).save(folder_ / "c");
                                 },
                                 {.errors_expected = true});
  EXPECT_THAT(results[0].error, HasSubstr("rank 1"));
  EXPECT_EQ(number_in(folder_ / "c"), 1);
  EXPECT_EQ(temporary_.entries(), 1U);
}

TEST_F(ShardsFaultTest, ShardsThatAreNotOneTensorAreRefused) {
  for (const bool full : {false, true}) {
    const auto results = run_ranks(2, [&](Collective& group) -> std::string {
      Numbered here(group, 2);
      here.place.start = 0;
      here.shards.add(here.net->parameters()[0], here.place);
      return error_of([&] { save_checkpoint(folder_ / "c", here.state(), {.shards = &here.shards, .full = full}); });
    });
    for (const auto& result : results) {
      EXPECT_THAT(result.text, HasSubstr(full ? "the shards of \"model.w\" on the ranks are not one tensor"
                                              : "shards of \"model.w\" overlap"));
      EXPECT_EQ(result.text, results[0].text);
    }
    EXPECT_EQ(temporary_.entries(), 0U);
  }
}

TEST_F(ShardsFaultTest, AnUnshardedParameterIsNoShard) {
  const auto results = run_ranks(2, [&](Collective& group) -> std::string {
    Numbered here(group, 2);
    here.net->parameters()[0].set_data(torch::zeros({200, 64}));
    return error_of([&] { here.save(folder_ / "c"); });
  });
  EXPECT_THAT(results[1].text,
              HasSubstr("which is no shard of [200, 64] from row 100 on; save between steps (rank 1)"));
}

TEST_F(ShardsFaultTest, ADamagedShardIsNamedByAllRanksAndNothingChanges) {
  save_number(1, "one");
  save_number(2, "two");
  flip_last_byte(folder_ / "two/model.rank-1.safetensors");
  const std::string what = "tensor \"model.w\" in \"model.rank-1.safetensors\" has checksum";
  EXPECT_THAT(error_of([&] { verify_checkpoint(folder_ / "two"); }), HasSubstr(what));
  EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "one");
  EXPECT_THAT(error_of([&] { consolidate_checkpoint(folder_ / "two", folder_ / "three"); }), HasSubstr(what));
  EXPECT_FALSE(fs::exists(folder_ / "three"));
  const auto results = run_ranks(2, [&](Collective& group) -> std::string {
    Numbered here(group, 7);
    // 200 rows for each of these ranks, where four ranks had 100.
    const auto part = torch::full({200, 64}, 7.0);
    here.net->parameters()[0].set_data(part);
    here.shards.add(here.net->parameters()[0], {.sizes = {400, 64}, .start = 200 * group.rank()});
    const auto state = here.state();
    const auto line = error_of([&] { load_checkpoint(folder_ / "two", state, {.shards = &here.shards}); });
    EXPECT_TRUE(part.eq(7).all().item<bool>());
    EXPECT_EQ(here.number, 7);
    load_checkpoint(folder_ / "one", state, {.shards = &here.shards});
    EXPECT_TRUE(part.eq(1).all().item<bool>());
    return line;
  });
  for (const auto& result : results) EXPECT_THAT(result.text, HasSubstr(what));

  fs::remove(folder_ / "two/model.rank-3.safetensors");
  EXPECT_THAT(error_of([&] { verify_checkpoint(folder_ / "two"); }),
              HasSubstr("incomplete: cannot read \"model.rank-3.safetensors\""));
}

TEST_F(ShardsFaultTest, OnlyACheckpointIsReplaced) {
  fs::create_directories(folder_ / "c");
  std::ofstream(folder_ / "c/notes.txt") << "mine";
  const auto results = run_ranks(
      2, [&](Collective& group) -> std::string { return error_of([&] { Numbered(group, 2).save(folder_ / "c"); }); });
  for (const auto& result : results)
    EXPECT_THAT(result.text, HasSubstr("holds \"notes.txt\", which is not part of a checkpoint"));
  EXPECT_TRUE(fs::exists(folder_ / "c/notes.txt"));
}

}  // namespace
}  // namespace levin
