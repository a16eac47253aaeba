// The recipes of text, as a user starts them, with tiny models of transformers.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <ATen/ops/linalg_svdvals.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/models/lora/lora.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"

namespace levin::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kTextTasks = fs::path(source_dir()) / "tests/models/fixtures/text_tasks";

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<double> column(const fs::path& csv, const std::string& name) {
  std::ifstream file(csv);
  std::string line, cell;
  std::getline(file, line);
  std::istringstream header(line);
  size_t wanted = 0;
  while (std::getline(header, cell, ',') && cell != name) ++wanted;
  std::vector<double> values;
  while (std::getline(file, line)) {
    std::istringstream row(line);
    for (size_t i = 0; i <= wanted; ++i) std::getline(row, cell, ',');
    if (!cell.empty()) values.push_back(std::stod(cell));
  }
  return values;
}

class TextRecipes : public FolderTest {
 protected:
  void SetUp() override {
    if (!fs::exists(program_)) GTEST_SKIP() << "the program `levin` is not built here";
  }

  std::vector<std::string> words(const std::string& recipe, const std::string& model, const std::string& runs,
                                 const std::vector<std::string>& more) const {
    std::vector<std::string> all{program_,
                                 "fit",
                                 recipe,
                                 "--trainer.accelerator=cpu",
                                 "--trainer.enable_model_summary=false",
                                 "--trainer.enable_progress_bar=false",
                                 "--trainer.default_root_dir=" + (folder_ / runs).string(),
                                 "--model.folder=" + (kTextTasks / model).string(),
                                 "--data.batch_size=4"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void fit(const std::string& recipe, const std::string& model, const std::string& runs,
           const std::vector<std::string>& more) const {
    Process child(words(recipe, model, runs, more), {"OMP_NUM_THREADS=1"});
    ASSERT_EQ(child.wait(), 0) << child.err();
  }
  /// The only line of the error of a run that cannot be.
  std::string mistake(const std::string& recipe, const fs::path& model, const std::vector<std::string>& more) const {
    Process child(words(recipe, model.string(), "none", more), {"OMP_NUM_THREADS=1"});
    EXPECT_EQ(child.wait(), 1);
    EXPECT_FALSE(fs::exists(folder_ / "none")) << "files of a run that never began";
    const auto at = child.err().find("error:");
    return at == std::string::npos ? child.err() : child.err().substr(at);
  }
  fs::path saved(const std::string& runs) const { return run(runs) / "model"; }
  fs::path run(const std::string& runs, int version = 0) const {
    return folder_ / runs / "levin_logs" / ("version_" + std::to_string(version));
  }

  void expect_curve(const std::string& name, const std::string& runs) const {
    const auto expected = nlohmann::json::parse(text_of(kTextTasks / "curves.json"))[name].get<std::vector<double>>();
    const auto found = column(run(runs) / "metrics.csv", "train_loss");
    ASSERT_EQ(found.size(), expected.size());
    double largest = 0;
    for (size_t i = 0; i < found.size(); ++i) largest = std::max(largest, std::abs(found[i] - expected[i]));
    EXPECT_LT(largest, 1e-4);
    EXPECT_GT(std::abs(expected.back() - expected.front()), 0.1) << "the curve must be one";
  }

  std::string program_ = levin_program();
};

const std::vector<std::string> kHundredSteps{"--data.order=sequential",       "--data.val_fraction=0",
                                             "--optimizer.weight_decay=0.01", "--lr_scheduler=null",
                                             "--trainer.max_steps=100",       "--trainer.gradient_clip_val=null",
                                             "--trainer.max_epochs=-1",       "--trainer.log_every_n_steps=1"};

std::vector<std::string> joined(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_F(TextRecipes, CurvesAreThoseOfTransformersAndPeft) {
  fit("text_classification", "distilbert", "whole",
      joined(kHundredSteps,
             {"--data.train=" + (kTextTasks / "reviews.csv").string(), "--data.max_length=16", "--optimizer.lr=1e-3"}));
  expect_curve("distilbert", "whole");
  auto model = models::open_model(saved("whole"));
  EXPECT_THAT(models::label_names(model.config), ElementsAre("negative", "positive"));
  EXPECT_TRUE(fs::exists(saved("whole") / "tokenizer.json"));

  fit("finetune_lm", "llama", "adapters",
      joined(kHundredSteps,
             {"--data.train=" + (kTextTasks / "questions.jsonl").string(),
              "--model.lora.adapter=" + (kTextTasks / "llama_adapter").string(), "--optimizer.lr=1e-2"}));
  expect_curve("llama_adapter", "adapters");
  auto base = models::open_model(kTextTasks / "llama");
  models::load_lora(base, saved("adapters"));
  EXPECT_FALSE(models::lora_parameters(base).empty());

  const auto python = python_with("peft, transformers, safetensors");
  if (!python) GTEST_SKIP() << "no Python with peft, transformers and safetensors (LEVIN_PEER_PYTHON names one)";
  const auto script = (kTextTasks / "../../make_text_task_fixtures.py").lexically_normal().string();
  const auto ran = run_program({*python, script, saved("whole").string(), saved("adapters").string()});
  EXPECT_EQ(ran.status, 0) << ran.text();
}

TEST_F(TextRecipes, ResumedRunIsTheSame) {
  const std::vector<std::string> common{"--data.train=" + (kTextTasks / "chats.jsonl").string(),
                                        "--data.packing=documents",
                                        "--model.lora.rank=2",
                                        "--model.lora.dropout=0.2",
                                        "--data.batch_size=1",
                                        "--seed=1",
                                        "--lr_scheduler=null",
                                        "--trainer.log_every_n_steps=1"};
  fit("finetune_lm", "llama", "once", joined(common, {"--trainer.max_steps=6", "--model.save=none"}));
  EXPECT_FALSE(fs::exists(saved("once")));
  fit("finetune_lm", "llama", "twice", joined(common, {"--trainer.max_steps=4"}));
  fit("finetune_lm", "llama", "twice", joined(common, {"--trainer.max_steps=6", "--ckpt_path=last"}));
  const auto once = column(run("once") / "metrics.csv", "train_loss");
  auto twice = column(run("twice") / "metrics.csv", "train_loss");
  const auto rest = column(run("twice", 1) / "metrics.csv", "train_loss");
  twice.insert(twice.end(), rest.begin(), rest.end());
  EXPECT_EQ(once.size(), 6u);
  EXPECT_EQ(once, twice);
}

TEST_F(TextRecipes, ShardedRunIsSavedWhole) {
  fit("text_classification", "llama", "sharded",
      {"--data.generated=40", "--trainer.max_steps=2", "--trainer.strategy=fsdp", "--trainer.devices=2",
       "--trainer.precision=bf16-true", "--model.lora.rank=2", "--data.class_weights=balanced"});
  auto model = models::open_model(saved("sharded"));
  EXPECT_EQ(model.dtype, at::kBFloat16);
  EXPECT_EQ(model.decoder->options.num_labels, 2);
  EXPECT_THAT(models::label_names(model.config), ElementsAre("negative", "positive"));
  const auto before = models::open_model(kTextTasks / "llama");
  EXPECT_TRUE(model.decoder->tokens->weight.equal(before.decoder->tokens->weight.to(at::kBFloat16)));
}

TEST_F(TextRecipes, AdaptersOverQuantizedWeights) {
  const std::vector<std::string> common{"--trainer.max_steps=4", "--model.lora.rank=2", "--model.quantize=int8-weights",
                                        "--data.generated=40"};
  fit("finetune_lm", "llama", "lm", joined(common, {"--trainer.precision=bf16-true"}));
  auto base = models::open_model(kTextTasks / "llama");
  models::load_lora(base, saved("lm"));
  double change = 0;
  for (const auto& parameter : models::lora_parameters(base)) change += parameter.abs().sum().item<double>();
  EXPECT_GT(change, 0);
  // Merged into weights that are not quantized.
  fit("text_classification", "llama", "classes", common);
  const auto merged = models::open_model(saved("classes"));
  const auto before = models::open_model(kTextTasks / "llama").decoder->named_parameters();
  int64_t changed = 0;
  for (const auto& parameter : merged.decoder->named_parameters()) {
    const auto* old = before.find(parameter.key());
    if (!old || old->dim() != 2 || old->sizes() != parameter.value().sizes() || old->equal(parameter.value())) continue;
    const auto sizes = at::linalg_svdvals(parameter.value().detach() - old->detach());
    EXPECT_GT(sizes[0].item<double>(), 1e-5) << parameter.key();
    EXPECT_LT(sizes[6].item<double>(), 1e-6)
        << parameter.key() << ": more than adapters of rank 2 of queries, keys and values changed";
    ++changed;
  }
  EXPECT_GT(changed, 0);
}

TEST_F(TextRecipes, MistakesAreOneLine) {
  EXPECT_THAT(mistake("finetune_lm", "llama", {"--data.generated=40", "--model.quantize=nf4"}),
              HasSubstr("set model.lora.rank"));
  EXPECT_THAT(mistake("finetune_lm", "llama", {"--data.generated=40", "--model.quantize=int5", "--model.lora.rank=2"}),
              HasSubstr("int5"));
  EXPECT_THAT(mistake("text_classification", "../language/distilbert_sequence", {"--data.generated=20"}),
              HasSubstr("has no tokenizer"));
  fs::copy(kTextTasks / "distilbert", folder_ / "small");
  fs::copy_file(kTextTasks / "llama/tokenizer.json", folder_ / "small/tokenizer.json",
                fs::copy_options::overwrite_existing);
  EXPECT_THAT(mistake("text_classification", folder_ / "small", {"--data.generated=20"}),
              AllOf(HasSubstr("tokens, the model 96"), HasSubstr("do not belong together")));
  std::ofstream(folder_ / "test.csv") << "text,label\ngood,fine\n";
  EXPECT_THAT(mistake("text_classification", "distilbert",
                      {"--data.train=" + (kTextTasks / "reviews.csv").string(),
                       "--data.test=" + (folder_ / "test.csv").string()}),
              AllOf(HasSubstr("data.test"), HasSubstr("\"fine\""), HasSubstr("negative, positive")));
}

}  // namespace
}  // namespace levin::testing
