// Callbacks of two ranks that see different values and clocks: what they decide is the same.
#include <fstream>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/distributed/launcher.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "levin/trainer/callbacks/timer.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"
#include "tests/trainer/callbacks/fake_run.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using levin::testing::names_in;
using levin::testing::TemporaryFolder;

constexpr const char* kFolder = "LEVIN_TEST_FOLDER";

/// Runs a test of this program that is otherwise disabled, as two ranks.
int run_as_ranks(const std::string& test, const fs::path& folder) {
  ::setenv(kFolder, folder.c_str(), 1);
  return launch(
      {.command = {"/proc/self/exe", "--gtest_brief=1", "--gtest_also_run_disabled_tests", "--gtest_filter=*" + test},
       .nproc = 2});
}

fs::path folder_of_ranks() {
  return std::getenv(kFolder) ? std::getenv(kFolder) : "";
}

void tell(int rank, const std::string& text) {
  write_file(folder_of_ranks() / ("rank_" + std::to_string(rank)), text);
}

TrainerOptions two_ranks(std::vector<CallbackRef> callbacks) {
  TrainerOptions o;
  o.accelerator = "cpu";
  o.strategy = "ddp";
  o.devices = 2;
  o.logger = false;
  o.callbacks = std::move(callbacks);
  o.enable_model_summary = false;
  o.enable_progress_bar = false;
  o.num_sanity_val_steps = 0;
  o.default_root_dir = folder_of_ranks();
  return o;
}

/// A value for each rank and epoch, which is not reduced.
struct Differing : trainer_test::Boring {
  void on_validation_epoch_end() override {
    const auto rank = static_cast<size_t>(trainer().fabric().global_rank());
    log("value", values[rank][static_cast<size_t>(current_epoch())]);
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    auto loss = loss_of(batch);
    log("val_loss", loss, {.prog_bar = true, .sync_dist = true});
    return loss;
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    auto loss = loss_of(batch);
    log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true, .sync_dist = true});
    return loss;
  }
  std::vector<double> values[2];
};

TEST(RankBodies, DISABLED_Checkpoints) {
  Differing module;
  module.values[0] = {3, 2, 5, 1};
  module.values[1] = {1, 2, 3, 4};
  auto kept = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = folder_of_ranks() / "kept",
                                                                       .filename = "{epoch}-{train_loss_epoch:.0f}",
                                                                       .monitor = "value",
                                                                       .save_last = "link",
                                                                       .save_top_k = 2});
  auto newest = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = folder_of_ranks() / "newest", .filename = "{epoch}-{val_loss:.0f}"});
  auto o = two_ranks({kept, newest, TrainerProgressBar({.file = std::fopen("/dev/null", "w")})});
  o.enable_progress_bar = {};
  o.max_epochs = 4;
  Trainer trainer(o);
  trainer.fit(module, trainer_test::boring_loader(8, 1), trainer_test::boring_loader(4, 1));
  std::string told;
  for (const auto& [path, score] : kept->best_k_models())
    told += path.filename().string().substr(0, 7) + " " + std::to_string(score) + "\n";
  tell(trainer.fabric().global_rank(), told + newest->best_model_path().filename().string().substr(0, 7));
}

TEST(CallbacksOfRanks, KeepWhatRankZeroSays) {
  TemporaryFolder folder;
  ASSERT_EQ(run_as_ranks("RankBodies.DISABLED_Checkpoints", folder.path()), 0);
  EXPECT_EQ(read_file(folder.path() / "rank_0"), "epoch=1 2.000000\nepoch=3 1.000000\nepoch=3");
  EXPECT_EQ(read_file(folder.path() / "rank_1"), read_file(folder.path() / "rank_0"));
  EXPECT_EQ(names_in(folder.path() / "kept").size(), 3u);
  EXPECT_EQ(names_in(folder.path() / "newest").size(), 1u);
  EXPECT_TRUE(fs::is_symlink(folder.path() / "kept" / "last.ckpt"));
}

TEST(RankBodies, DISABLED_EarlyStopping) {
  Differing module;
  module.values[0] = {9, 8, 7, 6, 5, 4, 3, 2};
  module.values[1] = {1, 1, 1, 1, 1, 1, 1, 1};
  auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "value", .patience = 2});
  auto o = two_ranks({stopping});
  o.max_epochs = 8;
  o.enable_checkpointing = false;
  Trainer trainer(o);
  trainer.fit(module, trainer_test::boring_loader(4, 1), trainer_test::boring_loader(4, 1));
  tell(trainer.fabric().global_rank(), std::to_string(stopping->stopped_epoch()) + " " +
                                           std::to_string(trainer.current_epoch()) + " " +
                                           std::to_string(static_cast<int>(stopping->stopping_reason())));
}

TEST(CallbacksOfRanks, AnyRankStopsAll) {
  TemporaryFolder folder;
  ASSERT_EQ(run_as_ranks("RankBodies.DISABLED_EarlyStopping", folder.path()), 0);
  EXPECT_EQ(read_file(folder.path() / "rank_0"), "2 3 3");
  EXPECT_EQ(read_file(folder.path() / "rank_1"), "2 3 3");
}

TEST(RankBodies, DISABLED_Clocks) {
  trainer_test::Boring module;
  int64_t batches = 0;
  // Only rank 0's clock runs.
  const bool is_first = std::string(std::getenv("RANK")) == "0";
  const auto clock = [&] { return is_first ? 0.1 * static_cast<double>(batches) : 0.0; };
  struct Count : trainer_test::Boring {
    explicit Count(int64_t& n) : count(n) {}
    StepOutput training_step(const Batch& batch, const StepInfo&) override {
      ++count;
      return loss_of(batch);
    }
    int64_t& count;
  } counting(batches);
  auto o = two_ranks({Timer({.duration = std::chrono::seconds(10), .verbose = false, .clock = clock}),
                      ModelCheckpoint({.dirpath = folder_of_ranks() / "kept",
                                       .save_top_k = -1,
                                       .train_time_interval = std::chrono::seconds(4),
                                       .clock = clock})});
  o.max_epochs = 1;
  Trainer trainer(o);
  trainer.fit(counting, trainer_test::boring_loader(400, 1));
  tell(trainer.fabric().global_rank(), std::to_string(trainer.global_step()));
}

TEST(CallbacksOfRanks, TheClockOfRankZeroCounts) {
  TemporaryFolder folder;
  ASSERT_EQ(run_as_ranks("RankBodies.DISABLED_Clocks", folder.path()), 0);
  const auto steps = std::stoll(read_file(folder.path() / "rank_0"));
  EXPECT_EQ(read_file(folder.path() / "rank_1"), read_file(folder.path() / "rank_0"));
  // Batches take a tenth of a second, always: what is asked about less often is still found in time.
  EXPECT_GE(steps, 100);
  EXPECT_LE(steps, 101);
  EXPECT_EQ(names_in(folder.path() / "kept").size(), 2u);
}

}  // namespace
}  // namespace levin
