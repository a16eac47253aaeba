// SpikeDetection: which loss is a spike, and what is left behind.
#include "levin/trainer/callbacks/spike_detection.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

/// Returns these losses, batch after batch.
struct Scripted : Net {
  explicit Scripted(std::vector<double> values) : script(std::move(values)) {}
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    return loss_of(batch) * 0 + script.at(static_cast<size_t>(at.batch_idx));
  }
  std::vector<double> script;
};

/// The batch of the spike; -1: none.
int64_t spike_in(std::vector<double> losses, SpikeDetectionOptions options = {}, std::string* file = nullptr) {
  TemporaryFolder folder;
  const auto count = static_cast<int64_t>(losses.size());
  Scripted net(std::move(losses));
  auto o = quiet({SpikeDetection(options)}, 1, folder.path());
  if (!options.finite_only) o.on_nonfinite = "warn";
  Trainer trainer(o);
  const auto path = folder.path() / "skip_batches.json";
  try {
    trainer.fit(net, loader(count, 1));
  } catch (const TrainingSpikeError& error) {
    EXPECT_THAT(error.what(), HasSubstr("skip_batches.json"));
    if (file) *file = read_file(path);
    EXPECT_TRUE(std::filesystem::exists(path));
    return error.batch_idx();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  return -1;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(SpikeDetection, FindsAJump) {
  EXPECT_EQ(spike_in({1, 1, 1, 1.5, 1, 1}), -1);
  EXPECT_EQ(spike_in({1, 1, 1, 2.9, 1, 1}), -1);
  EXPECT_EQ(spike_in({1, 1, 1, 3.1, 1, 1}), 3);
  EXPECT_EQ(spike_in({1, 1, 1, kNan, 1}), 3);
  EXPECT_EQ(spike_in({1, 1, 1, kNan, 1}, {.finite_only = false}), -1);
}

TEST(SpikeDetection, ComparesAsItIsTold) {
  EXPECT_EQ(spike_in({1, 1, 1, 1.6, 1}, {.rtol = 0.5}), 3);
  EXPECT_EQ(spike_in({1, 1, 1, 1.6, 1}, {.atol = 1, .rtol = 0.5}), -1);
  EXPECT_EQ(spike_in({1, 1, 1, 1.6, 1}, {.atol = 0.5, .rtol = {}}), 3);
  EXPECT_EQ(spike_in({1, 9, 9, 9}), 1);
  EXPECT_EQ(spike_in({1, 9, 9, 9}, {.warmup = 3}), -1);
  EXPECT_EQ(spike_in({5, 5, 0.1, 5}, {.mode = "max", .rtol = 0.5}), 2);
  // The mean of the newest two is 4, of all 2.8.
  EXPECT_EQ(spike_in({2, 2, 2, 3, 4, 4, 9}, {.window = 2, .rtol = 1.3}), -1);
  EXPECT_EQ(spike_in({2, 2, 2, 3, 4, 4, 9}, {.window = 10, .rtol = 1.3}), 6);
}

TEST(SpikeDetection, LeavesTheBatchesToSkip) {
  std::string file;
  EXPECT_EQ(spike_in({1, 1, 1, 9}, {}, &file), 3);
  EXPECT_EQ(Json::parse(file), (Json{2, 3}));
}

TEST(SpikeDetection, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { SpikeDetection({.mode = "mni"}); }), HasSubstr("did you mean \"min\"?"));
  EXPECT_THAT(error_of([] { SpikeDetection({.window = 0}); }), HasSubstr("window=0"));
}

}  // namespace
}  // namespace levin::tuning_test
