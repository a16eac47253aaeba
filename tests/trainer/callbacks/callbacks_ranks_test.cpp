// Callbacks of two ranks that see different values and clocks: what they decide is the same.
#include <fstream>

#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/probe.h"
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
using levin::testing::launch_probe;
using levin::testing::names_in;
using levin::testing::TemporaryFolder;
using levin::testing::write_answer;

TrainerOptions two_ranks(const fs::path& folder, std::vector<CallbackRef> callbacks) {
  TrainerOptions o;
  o.accelerator = "cpu";
  o.strategy = "ddp";
  o.devices = 2;
  o.logger = false;
  o.callbacks = std::move(callbacks);
  o.enable_model_summary = false;
  o.enable_progress_bar = false;
  o.num_sanity_val_steps = 0;
  o.default_root_dir = folder;
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

LEVIN_PROBE(checkpoints_of_ranks) {
  Differing module;
  module.values[0] = {3, 2, 5, 1};
  module.values[1] = {1, 2, 3, 4};
  auto kept = std::make_shared<ModelCheckpoint>(ModelCheckpointOptions{.dirpath = fs::path(arguments.at(0)) / "kept",
                                                                       .filename = "{epoch}-{train_loss_epoch:.0f}",
                                                                       .monitor = "value",
                                                                       .save_last = "link",
                                                                       .save_top_k = 2});
  auto newest = std::make_shared<ModelCheckpoint>(
      ModelCheckpointOptions{.dirpath = fs::path(arguments.at(0)) / "newest", .filename = "{epoch}-{val_loss:.0f}"});
  auto o = two_ranks(arguments.at(0), {kept, newest, TrainerProgressBar({.file = std::fopen("/dev/null", "w")})});
  o.enable_progress_bar = {};
  o.max_epochs = 4;
  Trainer trainer(o);
  trainer.fit(module, trainer_test::boring_loader(8, 1), trainer_test::boring_loader(4, 1));
  std::string told;
  for (const auto& [path, score] : kept->best_k_models())
    told += path.filename().string().substr(0, 7) + " " + std::to_string(score) + "\n";
  write_answer(arguments.at(0), told + newest->best_model_path().filename().string().substr(0, 7));
}

TEST(CallbacksOfRanks, KeepWhatRankZeroSays) {
  TemporaryFolder folder;
  ASSERT_EQ(launch_probe("checkpoints_of_ranks", 2, {folder.path().string()}), 0);
  EXPECT_EQ(read_file(folder.path() / "rank_0"), "epoch=1 2.000000\nepoch=3 1.000000\nepoch=3");
  EXPECT_EQ(read_file(folder.path() / "rank_1"), read_file(folder.path() / "rank_0"));
  EXPECT_EQ(names_in(folder.path() / "kept").size(), 3u);
  EXPECT_EQ(names_in(folder.path() / "newest").size(), 1u);
  EXPECT_TRUE(fs::is_symlink(folder.path() / "kept" / "last.ckpt"));
}

LEVIN_PROBE(early_stopping_of_ranks) {
  Differing module;
  module.values[0] = {9, 8, 7, 6, 5, 4, 3, 2};
  module.values[1] = {1, 1, 1, 1, 1, 1, 1, 1};
  auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{.monitor = "value", .patience = 2});
  auto o = two_ranks(arguments.at(0), {stopping});
  o.max_epochs = 8;
  o.enable_checkpointing = false;
  Trainer trainer(o);
  trainer.fit(module, trainer_test::boring_loader(4, 1), trainer_test::boring_loader(4, 1));
  write_answer(arguments.at(0), std::to_string(stopping->stopped_epoch()) + " " +
                                    std::to_string(trainer.current_epoch()) + " " +
                                    std::to_string(static_cast<int>(stopping->stopping_reason())));
}

TEST(CallbacksOfRanks, AnyRankStopsAll) {
  TemporaryFolder folder;
  ASSERT_EQ(launch_probe("early_stopping_of_ranks", 2, {folder.path().string()}), 0);
  EXPECT_EQ(read_file(folder.path() / "rank_0"), "2 3 3");
  EXPECT_EQ(read_file(folder.path() / "rank_1"), "2 3 3");
}

LEVIN_PROBE(clocks_of_ranks) {
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
  auto o = two_ranks(arguments.at(0), {Timer({.duration = std::chrono::seconds(10), .verbose = false, .clock = clock}),
                                       ModelCheckpoint({.dirpath = fs::path(arguments.at(0)) / "kept",
                                                        .save_top_k = -1,
                                                        .train_time_interval = std::chrono::seconds(4),
                                                        .clock = clock})});
  o.max_epochs = 1;
  Trainer trainer(o);
  trainer.fit(counting, trainer_test::boring_loader(400, 1));
  write_answer(arguments.at(0), std::to_string(trainer.global_step()));
}

TEST(CallbacksOfRanks, TheClockOfRankZeroCounts) {
  TemporaryFolder folder;
  ASSERT_EQ(launch_probe("clocks_of_ranks", 2, {folder.path().string()}), 0);
  const auto steps = std::stoll(read_file(folder.path() / "rank_0"));
  EXPECT_EQ(read_file(folder.path() / "rank_1"), read_file(folder.path() / "rank_0"));
  // Batches take a tenth of a second, always: what is asked about less often is still found in time.
  EXPECT_GE(steps, 100);
  EXPECT_LE(steps, 101);
  EXPECT_EQ(names_in(folder.path() / "kept").size(), 2u);
}

}  // namespace
}  // namespace levin
