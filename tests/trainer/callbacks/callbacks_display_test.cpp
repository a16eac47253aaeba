#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/io/weights/safetensors.h"
#include "levin/testing/scoped_variable.h"
#include "levin/trainer/callbacks/lambda.h"
#include "levin/trainer/callbacks/model_summary.h"
#include "levin/trainer/callbacks/prediction_writer.h"
#include "levin/trainer/callbacks/progress_bar.h"
#include "tests/trainer/callbacks/fake_run.h"

namespace levin {
namespace {

using levin::testing::FakeRun;
using levin::testing::names_in;
using levin::testing::TemporaryFolder;
using ::testing::HasSubstr;

/// What is left on a screen of one column of lines after text with \r and "erase to the end of the line".
std::vector<std::string> screen_of(const std::string& text) {
  std::vector<std::string> lines{""};
  size_t column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    auto& line = lines.back();
    if (text[i] == '\r') {
      column = 0;
    } else if (text[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else if (text.compare(i, 3, "\x1b[K") == 0) {
      line.resize(column);
      i += 2;
    } else {
      line.resize(std::max(line.size(), column + 1));
      line[column++] = text[i];
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

class ProgressBarTest : public ::testing::Test {
 protected:
  void SetUp() override { file_ = ::open_memstream(&data_, &size_); }
  void TearDown() override {
    std::fclose(file_);
    std::free(data_);
  }
  std::shared_ptr<TrainerProgressBar> make(bool live, int64_t refresh_rate = 1) {
    return std::make_shared<TrainerProgressBar>(TrainerProgressBarOptions{
        .refresh_rate = refresh_rate, .file = file_, .lines = file_, .live = live, .clock = [this] { return now_; }});
  }
  std::string text() {
    std::fflush(file_);
    return {data_, size_};
  }

  const testing::ScopedVariable color_{"NO_COLOR", "1"}, language_{"LANG", "C"}, all_{"LC_ALL", "C"},
      width_{"LEVIN_TERMINAL_WIDTH", "100"};
  double now_ = 100;
  std::FILE* file_ = nullptr;
  char* data_ = nullptr;
  size_t size_ = 0;
};

TEST_F(ProgressBarTest, LeavesOneLineForAnEpochWithItsMetrics) {
  auto bar = make(true);
  FakeRun run({bar});
  run.plan_.max_epochs = 2;
  run.fit(
      2, 10, 10,
      [&] {
        now_ += 0.5;
        run.bar_metrics_["train_loss_step"] = at::scalar_tensor(0.25);
        if (run.global_step() == 5) bar->print_line("a line above");
      },
      [&] {
        now_ += 20;
        EXPECT_THAT(screen_of(text()).back(), HasSubstr("Validating"));
        run.bar_metrics_["val_loss"] = 0.125;
      },
      [&] {
        EXPECT_THAT(screen_of(text()).back(), HasSubstr("train_loss_step 0.250"));
        run.bar_metrics_["train_loss_epoch"] = 0.5;
      });
  const auto screen = screen_of(text());
  ASSERT_EQ(screen.size(), 3u) << text();
  EXPECT_EQ(screen[0], "a line above");
  EXPECT_THAT(screen[1], ::testing::StartsWith("Epoch 1/2 ===="));
  // Validation's time is not training's.
  EXPECT_THAT(screen[1], ::testing::EndsWith("100% 10/10  2.00 it/s  train_loss_epoch 0.500  val_loss 0.125  0:05"));
  EXPECT_THAT(screen[2], ::testing::StartsWith("Epoch 2/2 ===="));
}

TEST_F(ProgressBarTest, ReadsMetricsOnlyWhenItDraws) {
  struct Counting : FakeRun {
    using FakeRun::FakeRun;
    std::map<std::string, std::variant<double, Tensor>> progress_bar_metrics() override {
      ++reads;
      return FakeRun::progress_bar_metrics();
    }
    int reads = 0;
  };
  Counting run({make(true)});
  run.fit(1, 1000, 0, [&] { now_ += 0.001; });
  EXPECT_GE(run.reads, 9);
  EXPECT_LE(run.reads, 12);
}

TEST_F(ProgressBarTest, PlainLinesWithoutATerminal) {
  auto bar = make(false);
  FakeRun run({bar});
  run.plan_.max_epochs = 1;
  run.stage_ = Stage::kSanity;
  run.eval_batches_ = {2};
  run.each(&Callback::setup, run, std::string_view("fit"));
  run.each(&Callback::on_validation_start, run);
  run.each(&Callback::on_validation_batch_end, run, StepOutput(), AnyBatch(), StepInfo());
  run.each(&Callback::on_validation_end, run);
  run.stage_ = Stage::kTrain;
  run.fit(
      1, 4, 4, [&] { now_ += 0.5; }, [&] { run.bar_metrics_["val_loss"] = 0.125; });
  EXPECT_EQ(text(), "Epoch 1/1  50% 2/4  2.00 it/s  0:01<0:01\nEpoch 1/1 100% 4/4  2.00 it/s  val_loss 0.125  0:02\n");
}

TEST_F(ProgressBarTest, RefreshRateAndItsEnds) {
  FakeRun off({make(true, 0)});
  off.fit(1, 10, 10);
  EXPECT_EQ(text(), "");
  FakeRun slow({make(true, 4)});
  slow.fit(1, 10, 0, [&] { now_ += 1; });
  EXPECT_THAT(screen_of(text()).back(), HasSubstr("100% 10/10"));
  EXPECT_THROW(TrainerProgressBar({.refresh_rate = -1}), Error);
}

TEST_F(ProgressBarTest, TestAndPredictKeepTheirBars) {
  FakeRun run({make(true)});
  run.fitting_ = false;
  run.stage_ = Stage::kTest;
  run.eval_batches_ = {2, 1};
  run.each(&Callback::setup, run, std::string_view("test"));
  run.each(&Callback::on_test_start, run);
  for (int i = 0; i < 3; ++i) run.each(&Callback::on_test_batch_end, run, StepOutput(), AnyBatch(), StepInfo());
  run.bar_metrics_["test_acc"] = 0.5;
  run.each(&Callback::on_test_end, run);
  run.eval_batches_ = {std::nullopt};
  run.each(&Callback::on_predict_start, run);
  run.each(&Callback::on_predict_batch_end, run, StepOutput(), AnyBatch(), StepInfo());
  run.each(&Callback::on_predict_end, run);
  const auto screen = screen_of(text());
  ASSERT_EQ(screen.size(), 2u);
  EXPECT_THAT(screen[0], ::testing::StartsWith("Testing "));
  EXPECT_THAT(screen[0], HasSubstr("3/3  test_acc 0.500"));
  EXPECT_THAT(screen[1], ::testing::StartsWith("Predicting 1"));
}

TEST_F(ProgressBarTest, AnErrorGetsALineOfItsOwn) {
  FakeRun run({make(true)});
  run.train_batches_ = 10;
  run.each(&Callback::setup, run, std::string_view("fit"));
  run.each(&Callback::on_train_epoch_start, run);
  run.each(&Callback::on_exception, run, std::runtime_error("boom"));
  EXPECT_TRUE(text().ends_with("\n"));
}

struct TinyModule : TrainModule {
  TinyModule() { layer = register_module("layer", torch::nn::Linear(32, 2)); }
  bool run_sample() override {
    layer(at::zeros({1, 32}));
    return sampled = has_sample;
  }
  torch::nn::Linear layer = nullptr;
  bool has_sample = false;
  bool sampled = false;
};

TEST(ModelSummaryCallback, PrintsTheTable) {
  TinyModule module;
  FakeRun run({std::make_shared<ModelSummary>()});
  run.module_ = &module;
  run.each(&Callback::on_fit_start, run);
  ASSERT_EQ(run.lines_.size(), 1u);
  EXPECT_THAT(run.lines_[0], HasSubstr("layer"));
  EXPECT_THAT(run.lines_[0], HasSubstr("66"));
  EXPECT_THAT(run.lines_[0], ::testing::Not(HasSubstr("In sizes")));
  module.has_sample = true;
  run.each(&Callback::on_fit_start, run);
  EXPECT_TRUE(module.sampled);
  EXPECT_THAT(run.lines_[1], HasSubstr("In sizes"));
  EXPECT_THROW(ModelSummary({.max_depth = -2}), Error);
}

TEST(LambdaCallback, CallsWhatIsSet) {
  std::vector<std::string> calls;
  auto callback = std::make_shared<LambdaCallback>(LambdaHooks{
      .setup = [&](TrainerContext&, std::string_view stage) { calls.push_back("setup " + std::string(stage)); },
      .on_train_epoch_end =
          [&](TrainerContext& run) { calls.push_back("epoch " + std::to_string(run.current_epoch())); },
      .on_train_batch_end = [&](TrainerContext&, const StepOutput&, const AnyBatch&,
                                int64_t batch_idx) { calls.push_back("batch " + std::to_string(batch_idx)); }});
  FakeRun run({callback});
  run.fit(1, 2, 2);
  EXPECT_EQ(calls, (std::vector<std::string>{"setup fit", "batch 0", "batch 1", "epoch 0"}));
}

void predict(FakeRun& run, const std::vector<StepOutput>& outputs, int64_t loader = 0) {
  for (int64_t i = 0; i < std::ssize(outputs); ++i)
    run.each(&Callback::on_predict_batch_end, run, outputs[i], AnyBatch(), StepInfo{i, loader});
}

TEST(PredictionWriter, WritesAtItsInterval) {
  struct Writer : PredictionWriter {
    using PredictionWriter::PredictionWriter;
    void write_on_batch_end(TrainerContext&, const StepOutput& output, const AnyBatch&, const StepInfo&) override {
      batches.push_back(output.loss.item<int64_t>());
    }
    void write_on_epoch_end(TrainerContext&, const std::vector<std::vector<StepOutput>>& predictions) override {
      for (const auto& loader : predictions) sizes.push_back(std::ssize(loader));
    }
    std::vector<int64_t> batches, sizes;
  };
  const auto written = [](const char* interval) {
    auto writer = std::make_shared<Writer>(interval);
    FakeRun run({writer});
    run.each(&Callback::on_predict_epoch_start, run);
    predict(run, {at::scalar_tensor(1), at::scalar_tensor(2)});
    predict(run, {at::scalar_tensor(3)}, 1);
    run.each(&Callback::on_predict_epoch_end, run);
    return std::pair(writer->batches, writer->sizes);
  };
  using Pair = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
  EXPECT_EQ(written("batch"), (Pair{{1, 2, 3}, {}}));
  EXPECT_EQ(written("epoch"), (Pair{{}, {2, 1}}));
  EXPECT_EQ(written("batch_and_epoch"), (Pair{{1, 2, 3}, {2, 1}}));
  EXPECT_THROW(Writer("batches"), Error);
  FakeRun forgotten({std::make_shared<PredictionWriter>()});
  EXPECT_THROW(predict(forgotten, {at::scalar_tensor(1)}), Error);
}

TEST(SafetensorsPredictionWriter, WritesFiles) {
  TemporaryFolder folder;
  const auto at = folder.path() / "out";
  FakeRun run({std::make_shared<SafetensorsPredictionWriter>(
      SafetensorsPredictionWriterOptions{.output_dir = at, .write_interval = "batch_and_epoch"})});
  run.each(&Callback::on_predict_start, run);
  run.each(&Callback::on_predict_epoch_start, run);
  predict(run, {StepOutput(at::full({2}, 7.0), {{"label", at::full({2}, 3)}})});
  predict(run, {at::full({1}, 9.0)}, 1);
  run.each(&Callback::on_predict_epoch_end, run);
  EXPECT_EQ(names_in(at), (std::set<std::string>{"batch_00000-rank_0.safetensors", "predictions-rank_0.safetensors",
                                                 "loader_1-batch_00000-rank_0.safetensors"}));
  SafetensorsFile batch(at / "batch_00000-rank_0.safetensors");
  EXPECT_EQ(batch.read("prediction")[1].item<double>(), 7);
  EXPECT_EQ(batch.read("label")[1].item<double>(), 3);
  SafetensorsFile all(at / "predictions-rank_0.safetensors");
  EXPECT_EQ(all.read("1/0/prediction")[0].item<double>(), 9);
  EXPECT_THROW(SafetensorsPredictionWriter({}), Error);
}

}  // namespace
}  // namespace levin
