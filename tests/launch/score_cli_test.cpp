// levin score, and levin inspect of a model folder.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/testing/folder_test.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"

namespace levin::testing::score_cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const fs::path kFolders = fs::path(source_dir()) / "tests/models/fixtures/language";

class ScoreCli : public testing::FolderTest {
 protected:
  ProgramResult run(std::vector<std::string> words) {
    words.insert(words.begin(), levin_program());
    return run_program(words);
  }
};

TEST_F(ScoreCli, PrintsAJsonLineForEachRow) {
  const auto file = (folder_ / "rows.jsonl").string(), logits = (folder_ / "logits.safetensors").string();
  write_file(file, "{\"ids\": [3, 4, 5, 6]}\n\n{\"ids\": [7, 8], \"text\": \"x\"}\n{\"ids\": [9]}\n");
  const auto ran = run({"score", (kFolders / "llama").string(), file, "--json", "--logits", logits});
  ASSERT_EQ(ran.status, 0) << ran.text();
  std::istringstream lines(ran.out);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["ids"], (std::vector<int64_t>{3, 4, 5, 6}));
  EXPECT_EQ(rows[0]["logprobs"].size(), 3u);
  EXPECT_GT(rows[0]["perplexity"].get<double>(), 1);
  EXPECT_TRUE(rows[2]["perplexity"].is_null());
  const WeightFile written(logits);
  EXPECT_EQ(written.at("0").shape, (std::vector<int64_t>{4, 50}));
  EXPECT_EQ(written.at("1").shape, (std::vector<int64_t>{2, 50}));
  const auto table = run({"score", (kFolders / "llama").string(), file});
  EXPECT_THAT(table.out, AllOf(HasSubstr("4 tokens  perplexity"), HasSubstr("all: 4 scored")));
}

TEST_F(ScoreCli, WritesAVectorForEachRow) {
  const auto file = (folder_ / "rows.jsonl").string(), vectors = (folder_ / "vectors.safetensors").string();
  write_file(file, "{\"ids\": [3, 4, 5, 6]}\n{\"ids\": [7, 8]}\n");
  const auto ran = run({"score", (kFolders / "bert").string(), file, "--embeddings", vectors});
  ASSERT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.out, HasSubstr("2 rows of 12 numbers, pooling mean, normalized"));
  EXPECT_EQ(WeightFile(vectors).at("embeddings").shape, (std::vector<int64_t>{2, 12}));
  EXPECT_THAT(run({"score", (kFolders / "llama").string(), file, "--embeddings", vectors}).text(),
              HasSubstr("decoder"));
}

TEST_F(ScoreCli, NamesTheLikeliestClass) {
  const auto file = (folder_ / "rows.jsonl").string();
  write_file(file, "{\"ids\": [2, 53, 95, 52, 88, 3]}\n");
  const auto model = (kFolders / "../text_tasks/distilbert").string();
  const auto table = run({"score", model, file}), line = run({"score", model, file, "--json"});
  const auto logits = nlohmann::json::parse(line.out)["logits"].get<std::vector<double>>();
  ASSERT_EQ(logits.size(), 2u);
  const bool positive = logits[1] > logits[0];
  const auto share = 1 / (1 + std::exp(-std::abs(logits[1] - logits[0])));
  EXPECT_THAT(table.out, HasSubstr(fmt::format("6 tokens  {} {:.4f}", positive ? "positive" : "negative", share)));
}

TEST_F(ScoreCli, ConvertsAModelFolder) {
  const auto saved = folder_ / "saved";
  const auto ran = run({"convert", (kFolders / "gpt2").string(), saved.string(), "--to", "model", "--dtype", "bfloat16",
                        "--shard-bytes", "4000"});
  ASSERT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.out, HasSubstr("gpt2 in bfloat16"));
  EXPECT_TRUE(fs::exists(saved / "model.safetensors.index.json"));
  EXPECT_EQ(WeightFile(saved).at("transformer.wpe.weight").dtype, "bfloat16");
  EXPECT_THAT(run({"convert", (kFolders / "gpt2").string(), saved.string(), "--to", "model"}).text(),
              HasSubstr("is there already"));
  EXPECT_THAT(run({"convert", (kFolders / "gpt2").string(), saved.string(), "--to", "model", "--select", "x"}).text(),
              HasSubstr("leave --select out"));
}

TEST_F(ScoreCli, RefusesInOneLine) {
  const auto file = (folder_ / "rows.jsonl").string(), model = (kFolders / "llama").string();
  const auto refused = [&](const std::string& content, const std::string& expected) {
    write_file(file, content);
    const auto ran = run({"score", model, file});
    EXPECT_NE(ran.status, 0);
    EXPECT_THAT(ran.text(), HasSubstr(expected)) << content;
  };
  refused("{\"ids\": [1]}\n{x\n", ":2 is not a JSON object");
  refused("a text\n", "tokenizer");
  refused("{\"ids\": [1.5]}\n", "1.5 is not an integer");
  refused("{\"ids\": []}\n", "needs \"ids\"");
  refused("", "has no lines");
  refused("\n\n", "has no lines");
  refused("{\"text\": 5}\n", ":1: \"text\" is not a text");
  refused("{\"ids\": [50]}\n", "the id 50");
  EXPECT_THAT(run({"score", model, "nowhere"}).text(), HasSubstr("cannot read"));
  EXPECT_THAT(run({"score", model, folder_.string()}).text(), HasSubstr("cannot read"));
  EXPECT_THAT(run({"score", model, file, "--device", "gpuu"}).text(), HasSubstr("--device"));
  EXPECT_THAT(run({"score", model, file, "--logits", "x.bin"}).text(), HasSubstr("must end with .safetensors"));
}

TEST_F(ScoreCli, QuantizesTheModel) {
  const auto file = (folder_ / "rows.jsonl").string(), model = (kFolders / "../quantized/llama").string();
  write_file(file, "{\"ids\": [3, 4, 5, 6]}\n");
  const auto plain = run({"score", model, file}), packed = run({"score", model, file, "--quantize", "nf4"});
  EXPECT_EQ(packed.status, 0) << packed.text();
  EXPECT_THAT(packed.out, HasSubstr("all: 3 scored"));
  EXPECT_NE(packed.out, plain.out);
  EXPECT_THAT(run({"score", model, file, "--quantize", "nf5"}).text(), HasSubstr("did you mean \"nf4\"?"));
  EXPECT_THAT(run({"inspect", model, "--quantize", "nf4"}).out,
              AllOf(HasSubstr("linear layers in nf4"), HasSubstr("(QLoRA)")));
}

TEST_F(ScoreCli, InspectTellsOfTheModel) {
  const auto shown = run({"inspect", (kFolders / "llama").string()});
  EXPECT_EQ(shown.status, 0) << shown.text();
  EXPECT_THAT(shown.out,
              AllOf(HasSubstr("model: llama, "), HasSubstr("2 layers, hidden 16, 4 heads (2 of keys and values)"),
                    HasSubstr("inference: "), HasSubstr("training: ")));
  const auto json = nlohmann::json::parse(run({"inspect", (kFolders / "bert").string(), "--json"}).out);
  EXPECT_EQ(json["model"]["model_type"], "bert");
  EXPECT_EQ(json["model"]["vocab_size"], 50);
}

}  // namespace
}  // namespace levin::testing::score_cli
