// `levin fit gpt_text` as a user starts it: tiny models on tiny texts.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "levin/core/files.h"
#include "levin/data/token_dataset.h"
#include "levin/io/weights/safetensors.h"
#include "levin/models/folder.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/text/tokenizer.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class GptTextRecipe : public FolderTest {
 protected:
  void SetUp() override {
    if (!fs::exists(program_)) GTEST_SKIP() << "the program `levin` is not built here";
  }

  std::vector<std::string> words(const std::string& command, const std::vector<std::string>& more,
                                 const std::string& runs = "runs") const {
    std::vector<std::string> all{program_,
                                 command,
                                 "gpt_text",
                                 "--trainer.accelerator=cpu",
                                 "--trainer.default_root_dir=" + (folder_ / runs).string(),
                                 "--trainer.enable_progress_bar=false",
                                 "--trainer.enable_model_summary=false",
                                 "--trainer.log_every_n_steps=1",
                                 "--data.cache=" + (folder_ / "cache").string(),
                                 "--data.batch_size=4",
                                 "--data.eval_batch_size=4",
                                 "--model.n_layer=1",
                                 "--model.n_head=2",
                                 "--model.n_embd=16",
                                 "--model.block_size=16",
                                 "--model.sample_tokens=20"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// The values of a column of the run's metrics.csv, where it has any.
  std::vector<double> column(const std::string& name, const std::string& runs = "runs") const {
    std::ifstream file(run_folder(runs) / "metrics.csv");
    std::string line;
    std::getline(file, line);
    const auto split = [](const std::string& row) {
      std::vector<std::string> cells;
      std::istringstream in(row);
      for (std::string cell; std::getline(in, cell, ',');) cells.push_back(cell.substr(0, cell.find('\r')));
      return cells;
    };
    const auto names = split(line);
    const auto at = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    std::vector<double> values;
    while (std::getline(file, line))
      if (const auto cells = split(line); at < cells.size() && !cells[at].empty())
        values.push_back(std::stod(cells[at]));
    return values;
  }
  fs::path run_folder(const std::string& runs = "runs") const { return folder_ / runs / "levin_logs/version_0"; }

  void expect_same_model(const std::string& a, const std::string& b, double tolerance = 0) const {
    const SafetensorsFile first(run_folder(a) / "model/model.safetensors");
    const SafetensorsFile second(run_folder(b) / "model/model.safetensors");
    ASSERT_EQ(first.entries().size(), second.entries().size());
    for (const auto& entry : first.entries()) {
      const auto x = first.read(entry.name), y = second.read(entry.name);
      EXPECT_LE((x - y).abs().max().item<double>(), tolerance) << entry.name;
    }
  }

  std::string program_ = levin_program();
  const std::string fixtures_ = source_dir() + "/tests/launch/fixtures/gpt_text/";
  const std::string text_ = "--data.file=" + fixtures_ + "text.txt";
};

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(GptTextRecipe, ThirtyStepsAreThoseOfPyTorch) {
  Process child(words("fit", {text_, "--model.weights=" + fixtures_ + "model", "--data.windows=contiguous",
                              "--trainer.overfit_batches=5", "--trainer.max_steps=30", "--optimizer.lr=1e-2",
                              "--lr_scheduler.warmup_steps=6", "--lr_scheduler.eta_min=1e-3"}));
  ASSERT_EQ(child.wait(), 0) << child.err();
  const auto expected = nlohmann::json::parse(read_file(fixtures_ + "losses.json")).get<std::vector<double>>();
  const auto losses = column("train_loss");
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4) << "step " << i;
}

TEST_F(GptTextRecipe, SpeaksAndLeavesAModelFolder) {
  Process child(words("fit", {text_, "--trainer.max_steps=8", "--trainer.val_check_interval=4",
                              "--trainer.limit_val_batches=1.0", "--model.prompt=One"}));
  ASSERT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.out(), AllOf(HasSubstr("step 4: val_loss "), HasSubstr("step 8: val_loss "),
                                 HasSubstr("bits per character\nOne"), HasSubstr("Model: ")));
  const auto loss = column("val_loss"), bits = column("val_bpc");
  ASSERT_EQ(loss.size(), 2u);
  EXPECT_NEAR(bits[1], loss[1] / std::log(2.0), 1e-5);

  // The tokens of the folder are those of training, and its model has the loss of the last validation.
  const auto folder = run_folder() / "model";
  const auto tokenizer = text::Tokenizer::from_folder(folder);
  const auto text = read_file(fixtures_ + "text.txt");
  const auto ids = tokenizer.encode(text).ids;
  EXPECT_EQ(tokenizer.decode(ids), text);
  ASSERT_EQ(ids.size(), text.size());
  EXPECT_EQ(tokenizer.token_to_id("\n"), 0);
  const auto cached = fs::directory_iterator(folder_ / "cache")->path();
  const TokenDataset val(cached / "val.bin", {.length = 16});
  EXPECT_EQ(val.tokens(), static_cast<int64_t>(text.size() / 10));
  auto model = models::open_model(folder);
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (int64_t i = 0; i < val.size(); ++i) {
    const auto window = val.get(i);
    EXPECT_EQ(window["input"][0].item<int64_t>(), ids[text.size() - text.size() / 10 + static_cast<size_t>(i) * 16]);
    sum += model.decoder(window["input"].unsqueeze(0), window["target"].unsqueeze(0)).item<double>();
  }
  EXPECT_NEAR(sum / static_cast<double>(val.size()), loss[1], 1e-5);
}

TEST_F(GptTextRecipe, ResumesToTheBit) {
  const std::vector<std::string> common{text_, "--model.dropout=0.2", "--trainer.val_check_interval=3",
                                        "--trainer.max_steps=12", "--lr_scheduler.warmup_steps=2"};
  Process whole(words("fit", common, "whole"));
  ASSERT_EQ(whole.wait(), 0) << whole.err();
  // A run of twelve steps that is cut off behind the sixth.
  Process first(words("fit", joined(common, {"--trainer.max_steps=6", "--lr_scheduler.total_steps=12"}), "parts"));
  ASSERT_EQ(first.wait(), 0) << first.err();
  Process second(words("fit", joined(common, {"--lr_scheduler.total_steps=12", "--ckpt_path=last"}), "parts"));
  ASSERT_EQ(second.wait(), 0) << second.err();
  EXPECT_THAT(second.err(), HasSubstr("resumes from"));
  EXPECT_EQ(column("train_loss", "whole").size(), 12u);
  EXPECT_EQ(column("train_loss", "whole"), column("train_loss", "parts"));
  expect_same_model("whole", "parts");
}

TEST_F(GptTextRecipe, ShardedRanksSpeakAndTrainAsOne) {
  const std::vector<std::string> common{text_, "--trainer.max_steps=4", "--trainer.val_check_interval=4"};
  Process one(words("fit", joined(common, {"--data.batch_size=4"}), "one"));
  ASSERT_EQ(one.wait(), 0) << one.err();
  Process two(
      words("fit", joined(common, {"--data.batch_size=2", "--trainer.devices=2", "--trainer.strategy=fsdp"}), "two"));
  ASSERT_EQ(two.wait(), 0) << two.err();
  EXPECT_THAT(two.out(), HasSubstr("step 4: val_loss"));
  expect_same_model("one", "two", 1e-4);
  // Layers over two ranks, their state over two more.
  Process mesh(words("fit",
                     joined(common, {"--data.batch_size=2", "--trainer.devices=4",
                                     "--trainer.strategy=model_parallel:dp_shard=2,tp=2"}),
                     "mesh"));
  ASSERT_EQ(mesh.wait(), 0) << mesh.err();
  EXPECT_THAT(mesh.out(), HasSubstr("step 4: val_loss"));
  expect_same_model("one", "mesh", 1e-4);
}

/// Stages on two ranks, in two runs; and their state over two more, with gradients of weights apart.
TEST_F(GptTextRecipe, RanksThatHaveStagesSpeakTrainAndResumeAsOne) {
  const std::vector<std::string> common{text_,
                                        "--model.n_layer=2",
                                        "--trainer.max_steps=4",
                                        "--trainer.val_check_interval=2",
                                        "--lr_scheduler.warmup_steps=1",
                                        "--lr_scheduler.total_steps=4"};
  const auto fit = [&](const std::vector<std::string>& more, const std::string& runs) {
    Process child(words("fit", joined(common, more), runs));
    EXPECT_EQ(child.wait(), 0) << child.err();
    EXPECT_THAT(child.err(), Not(HasSubstr("sync_dist"))) << child.err();
    const auto start = std::min(child.out().find("step 4:"), child.out().size());
    return child.out().substr(start, child.out().find("Model:") - start);
  };
  const auto alone = fit({}, "one");
  EXPECT_THAT(alone, HasSubstr("bits per character"));
  const std::vector<std::string> stages{"--trainer.devices=2", "--trainer.strategy=pipeline_2"};
  fit(joined(stages, {"--trainer.max_steps=2"}), "stages");
  EXPECT_EQ(fit(joined(stages, {"--ckpt_path=last"}), "stages"), alone);
  expect_same_model("one", "stages", 1e-4);
  fit({"--data.batch_size=2", "--trainer.devices=4", "--trainer.strategy=model_parallel:pp=2,dp_shard=2,schedule=zb1p"},
      "mesh");
  expect_same_model("one", "mesh", 1e-4);
  const auto got = column("val_loss", "stages"), wanted = column("val_loss", "one");
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-4);
  EXPECT_EQ(column("val_loss", "mesh").size(), 2u);
}

TEST_F(GptTextRecipe, LearnsBpeOnAFolderOfTexts) {
  fs::create_directories(folder_ / "texts/more");
  write_file(folder_ / "texts/a.txt", read_file(fixtures_ + "text.txt"));
  write_file(folder_ / "texts/more/b.txt", "Grüße. " + read_file(fixtures_ + "text.txt"));
  write_file(folder_ / "texts/.hidden", "\xff");
  const std::vector<std::string> common{"--data.file=" + (folder_ / "texts").string(), "--data.tokenizer=bpe",
                                        "--data.vocab_size=300", "--trainer.max_steps=2", "--model.vocab_multiple=64"};
  Process child(words("fit", common));
  ASSERT_EQ(child.wait(), 0) << child.err();
  EXPECT_THAT(child.err(), AllOf(HasSubstr("training a BPE of 300 tokens"), HasSubstr("vocabulary of 300")));
  const auto model = models::open_model(run_folder() / "model");
  EXPECT_EQ(model.body().vocab_size, 320);
  const auto tokenizer = text::Tokenizer::from_folder(run_folder() / "model");
  EXPECT_EQ(tokenizer.config().eos_token, "<|endoftext|>");
  // The tokens are kept; the model's own folder is a tokenizer too, and goes on with the same ids.  words: ok
  Process again(words("fit", joined(common, {"--trainer.precision=bf16-mixed"}), "again"));
  ASSERT_EQ(again.wait(), 0) << again.err();
  EXPECT_THAT(again.err(), Not(HasSubstr("training a BPE")));
  Process given(words("fit", joined(common, {"--data.tokenizer=" + (run_folder() / "model").string()}), "given"));
  ASSERT_EQ(given.wait(), 0) << given.err();
  EXPECT_EQ(column("train_loss").size(), 2u);
  EXPECT_EQ(column("train_loss"), column("train_loss", "given"));
}

TEST_F(GptTextRecipe, TestsAndPredictsFromACheckpoint) {
  Process child(words("fit", {text_, "--trainer.max_steps=4"}));
  ASSERT_EQ(child.wait(), 0) << child.err();
  Process test(words("test", {text_, "--ckpt_path=last"}));
  ASSERT_EQ(test.wait(), 0) << test.err();
  EXPECT_THAT(test.out(), AllOf(HasSubstr("test_loss"), HasSubstr("test_bpc")));
  const auto output = folder_ / "spoken.safetensors";
  Process predict(words("predict", {text_, "--ckpt_path=last", "--data.num_samples=2", "--model.prompt=No old",
                                    "--output=" + output.string()}));
  ASSERT_EQ(predict.wait(), 0) << predict.err();
  EXPECT_THAT(predict.out(), HasSubstr("No old"));
  const auto tokens = SafetensorsFile(output).read("prediction");
  EXPECT_EQ(tokens.sizes().vec(), (std::vector<int64_t>{2, 26}));

  // The same number of characters, but others: the weights would mean something else.
  auto other = read_file(fixtures_ + "text.txt");
  std::replace(other.begin(), other.end(), 'x', 'y');
  write_file(folder_ / "other.txt", other);
  Process wrong(words("test", {"--data.file=" + (folder_ / "other.txt").string(), "--ckpt_path=last"}));
  EXPECT_EQ(wrong.wait(), 1);
  EXPECT_THAT(wrong.err(), HasSubstr("[gpt_text] the checkpoint was trained with another tokenizer"));
}

TEST_F(GptTextRecipe, ReadsTheBibleOfDebian) {
  Process child(words("fit", {"--data.file=" + fixtures_ + "bible.data", "--trainer.fast_dev_run=1"}));
  ASSERT_EQ(child.wait(), 0) << child.err();
  // Without numbers of verses, and with an empty line between two chapters.
  const auto cached = fs::directory_iterator(folder_ / "cache")->path();
  const TokenDataset train(cached / "train.bin", {.length = 1000});
  const auto input = train.get(0)["input"].contiguous();
  const auto decoded = text::Tokenizer::from_folder(cached).decode(
      std::span(input.const_data_ptr<int64_t>(), static_cast<size_t>(input.numel())));
  EXPECT_THAT(decoded, ::testing::StartsWith("One grey cats sees the moon.\nOne grey cats sees the river.\n"));
  const auto gap = decoded.find("\n\n");
  ASSERT_NE(gap, std::string::npos);
  EXPECT_EQ(std::count(decoded.begin(), decoded.begin() + static_cast<std::ptrdiff_t>(gap), '\n'), 19);
}

TEST_F(GptTextRecipe, MistakesAreOneLine) {
  write_file(folder_ / "latin1.txt", "Gr\xfc\xdf Gott, lieber Text.");
  write_file(folder_ / "short.txt", "too short");
  for (const auto& [flags, line] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--data.file=" + (folder_ / "latin1.txt").string()}, "latin1.txt\" is not UTF-8 (byte 2)"},
           {{"--data.file=" + (folder_ / "short.txt").string()}, "a window needs 17"},
           {{text_, "--data.tokenizer=words"}, "data.tokenizer \"words\" is not known"},
           {{text_, "--model.prompt=Zürich"}, "has characters that the text does not have"}}) {
    Process child(words("fit", joined(flags, {"--trainer.max_steps=1"})));
    EXPECT_EQ(child.wait(), 1) << line;
    const auto last = child.err().substr(std::min(child.err().rfind("error:"), child.err().size()));
    EXPECT_EQ(std::count(last.begin(), last.end(), '\n'), 1) << last;
    EXPECT_THAT(last, HasSubstr(line));
  }
}

}  // namespace
}  // namespace levin::testing
