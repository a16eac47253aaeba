// A checkpoint format of a program's own: plain and sharded, saved and loaded through the same calls as Levin's.
#include <chrono>

#include "levin/checkpoint/checkpoint_format.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/ranks.h"
#include "sharded.h"

namespace levin {
namespace {
namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;

/// One file that names a folder, in which the state is.
struct PointerFormat : CheckpointFormat {
  static fs::path target(const fs::path& path) { return path.string() + ".data"; }
  std::string_view name() const override { return "pointer"; }
  bool recognizes(const fs::path& path) const override { return fs::is_regular_file(path); }
  void save(const fs::path& path, const StateDict& state) const override {
    save_checkpoint(target(path), state);
    write_file(path, target(path).string());
  }
  StateDict load(const fs::path& path) const override { return load_checkpoint(target(path)); }
};

class CheckpointFormatTest : public testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    whole_.train(3);
    expected_ = whole_.state().state_dict();
  }
  void expect_right(const std::string& from) {
    ShardedModule again(nullptr);
    auto state = again.state();
    EXPECT_TRUE(load_checkpoint(folder_ / from, state, {.format = &format_}).empty());
    EXPECT_EQ(difference(state.state_dict(), expected_), "") << from;
    EXPECT_EQ(again.epoch, 3);
  }

  PointerFormat format_;
  ShardedModule whole_{nullptr};
  StateDict expected_;
};

TEST_F(CheckpointFormatTest, SavesAndLoadsAState) {
  save_checkpoint(folder_ / "own", whole_.state(), {.format = &format_});
  EXPECT_TRUE(fs::is_regular_file(folder_ / "own"));
  expect_right("own");
  ShardedModule raw(nullptr);
  load_raw(folder_ / "own", raw.net, {.format = &format_});
  EXPECT_EQ(difference(module_state_dict(*raw.net), module_state_dict(*whole_.net)), "");
}

TEST_F(CheckpointFormatTest, FilterAndSkipHold) {
  const auto keeps = [](std::string_view name, const StateValue&) { return name == "weight"; };
  save_checkpoint(folder_ / "own", whole_.state(), {.filter = {{"model", keeps}}, .format = &format_});
  const auto all = load_checkpoint(folder_ / "own", {.skip = {"optimizer"}, .format = &format_});
  EXPECT_EQ(all.at("model").to_dict().size(), 1u);
  EXPECT_FALSE(all.contains("optimizer"));
}

TEST_F(CheckpointFormatTest, LevinsOwnFormatIsReadToo) {
  save_checkpoint(folder_ / "folder", whole_.state());
  expect_right("folder");
  EXPECT_EQ(find_checkpoint_format(folder_ / "folder", &format_), checkpoint_formats().front());
  EXPECT_EQ(find_checkpoint_format(folder_ / "nothing", &format_), nullptr);
  EXPECT_THAT(error_of([&] { load_checkpoint(folder_ / "nothing"); }), HasSubstr("does not exist"));
}

TEST_F(CheckpointFormatTest, TheLatestGoodOneMayHaveAnyFormat) {
  save_checkpoint(folder_ / "folder", whole_.state());
  save_checkpoint(folder_ / "own", whole_.state(), {.format = &format_});
  fs::rename(folder_ / "own.data", folder_ / ".own.data");  // hidden: not a checkpoint of its own
  write_file(folder_ / "own", "");
  // Further ahead than any checkpoint that another test has read: later ones are dated after those.
  fs::last_write_time(folder_ / "own", fs::file_time_type::clock::now() + std::chrono::hours(24 * 365 * 100));
  EXPECT_EQ(latest_good_checkpoint(folder_, &format_), folder_ / "folder") << "the newer one cannot be read";
  fs::rename(folder_ / ".own.data", folder_ / "own.data");
  EXPECT_EQ(latest_good_checkpoint(folder_, &format_), folder_ / "own");
  EXPECT_EQ(latest_good_checkpoint(folder_), folder_ / "own.data") << "a file is no checkpoint of Levin's own format";
}

TEST_F(CheckpointFormatTest, RanksGatherAndTakeTheirShards) {
  save_checkpoint(folder_ / "folder", whole_.state());
  run_ranks(3, [&](Collective& group) {
    ShardedModule here(&group);
    auto state = here.state();
    load_checkpoint(folder_ / "folder", state, {.shards = here.shards.get()});
    here.shards->refresh();
    save_checkpoint(folder_ / "own", state, {.shards = here.shards.get(), .format = &format_});
  });
  expect_right("own");
  run_ranks(2, [&](Collective& group) {
    ShardedModule here(&group, uneven_rows);
    auto state = here.state();
    load_checkpoint(folder_ / "own", state, {.shards = here.shards.get(), .format = &format_});
    here.shards->refresh();
    EXPECT_EQ(difference(state.state_dict(), expected_, here.shards.get()), "");
  });
}

TEST_F(CheckpointFormatTest, AFailureOnRankZeroIsEveryones) {
  struct Full : PointerFormat {
    void save(const fs::path&, const StateDict&) const override { throw Error("[full] the disk is full"); }
  };
  const Full full;
  run_ranks(2, [&](Collective& group) {
    ShardedModule here(&group);
    const SaveOptions options{.shards = here.shards.get(), .format = &full};
    EXPECT_THAT(error_of([&] { save_checkpoint(folder_ / "own", here.state(), options); }),
                HasSubstr("the disk is full"));
  });
}

}  // namespace
}  // namespace levin
