#include "levin/models/language_score.h"

#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/models/sentence_embedding.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::language_score_tests {
namespace {

namespace fs = std::filesystem;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kScored = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

std::vector<int64_t> row_of(const Tensor& ids, int64_t length) {
  std::vector<int64_t> row;
  for (int64_t i = 0; i < length; ++i) row.push_back(ids[i].item<int64_t>());
  return row;
}

TEST(LanguageScore, IsTheLogSoftmaxOfTheLogits) {
  for (const char* name : {"llama", "bloom", "opt"}) {
    SCOPED_TRACE(name);
    const auto model = models::open_model(kScored / name);
    const WeightFile file(kScored / name / "outputs.st");
    const auto ids = file.read("ids"), logits = file.read("logits");
    const std::vector<std::vector<int64_t>> rows{row_of(ids[0], 12), row_of(ids[1], 5), row_of(ids[0], 1),
                                                 row_of(ids[1], 12)};
    for (const int64_t batch : {1, 3, 8}) {
      const auto scores = models::score_rows(model, rows, {.batch = batch, .keep_outputs = true});
      ASSERT_EQ(scores.size(), rows.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        const auto length = static_cast<int64_t>(rows[i].size());
        const auto expected = logits[static_cast<int64_t>(i) % 2].slice(0, 0, length);
        EXPECT_LT((scores[i].output - expected).abs().max().item<float>(), 2e-5);
        ASSERT_EQ(scores[i].logprobs.size(), rows[i].size() - 1);
        double sum = 0;
        for (int64_t t = 0; t + 1 < length; ++t) {
          const auto row = expected[t].log_softmax(0);
          const auto found = scores[i].logprobs[static_cast<size_t>(t)];
          EXPECT_NEAR(found, row[rows[i][static_cast<size_t>(t + 1)]].item<double>(), 2e-5);
          sum += found;
        }
        if (length > 1) {
          EXPECT_NEAR(scores[i].perplexity, std::exp(-sum / static_cast<double>(length - 1)), 1e-6);
        } else {
          EXPECT_TRUE(std::isnan(scores[i].perplexity));
        }
      }
    }
    EXPECT_FALSE(models::score_rows(model, rows)[0].output.defined());
  }
}

TEST(LanguageScore, EncodersGiveHiddenStatesAndTheirHead) {
  const auto model = models::open_model(kScored / "bert_sequence");
  const WeightFile file(kScored / "bert_sequence" / "outputs.st");
  const std::vector<std::vector<int64_t>> rows{row_of(file.read("ids")[0], 11), row_of(file.read("ids")[0], 4)};
  const auto scores = models::score_rows(model, rows, {.keep_outputs = true});
  EXPECT_EQ(scores[0].output.sizes(), (std::vector<int64_t>{11, 12}));
  EXPECT_EQ(scores[1].output.sizes(), (std::vector<int64_t>{4, 12}));
  auto alone = model.encoder;
  const auto expected = alone(at::tensor(rows[1], at::kLong).unsqueeze(0))[0];
  EXPECT_LT((scores[1].head - expected).abs().max().item<float>(), 1e-5);
}

TEST(LanguageScore, IdsAreChecked) {
  const auto model = models::open_model(kScored / "gpt2");
  const auto error = [&](std::vector<std::vector<int64_t>> rows) {
    return error_of([&] { models::score_rows(model, rows); });
  };
  EXPECT_THAT(error({{1, 2}, {50}}), HasSubstr("row 1 has the id 50; the model has 0 to 49"));
  EXPECT_THAT(error({{-1}}), HasSubstr("the id -1"));
  EXPECT_THAT(error({{}}), HasSubstr("row 0 has no tokens"));
  EXPECT_THAT(error({std::vector<int64_t>(17, 1)}), HasSubstr("row 0 has 17 tokens, more than the 16"));
}

/// A folder of sentence-transformers, made of a BERT.
fs::path sentence_folder(const fs::path& folder, const std::string& modules, const std::string& pooling) {
  fs::copy(kScored / "bert", folder);
  fs::create_directory(folder / "1_Pooling");
  write_file(folder / "modules.json", modules);
  write_file(folder / "1_Pooling/config.json", pooling);
  write_file(folder / "sentence_bert_config.json", R"({"max_seq_length": 9})");
  return folder;
}

constexpr const char* kSentenceModules = R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
    {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])";

TEST(SentenceEmbedding, FollowsTheFilesOfSentenceTransformers) {
  const testing::TemporaryFolder temporary;
  const auto folder = sentence_folder(temporary / "model", kSentenceModules, R"({"pooling_mode_mean_tokens": true,
      "pooling_mode_cls_token": false})");
  const auto pooling = models::sentence_pooling(folder);
  ASSERT_TRUE(pooling);
  EXPECT_EQ(pooling->mode, "mean");
  EXPECT_TRUE(pooling->normalize);
  EXPECT_EQ(pooling->max_tokens, 9);
  EXPECT_FALSE(models::sentence_pooling(kScored / "bert"));
  auto model = models::open_model(folder);
  const std::vector<std::vector<int64_t>> rows{{3, 4, 5, 6, 7, 8}, {9, 10}};
  const auto hidden = [&](size_t row) {
    return model.encoder->hidden_states(at::tensor(rows[row], at::kLong).unsqueeze(0)).detach();
  };
  for (const size_t row : {size_t{0}, size_t{1}}) {
    const auto at = static_cast<int64_t>(row);
    const auto mean = models::mean_embedding(hidden(row))[0];
    EXPECT_LT((models::embed_rows(model, rows, *pooling)[at] - mean / mean.norm()).abs().max().item<float>(), 1e-5);
    const auto last = models::embed_rows(model, rows, {.mode = "last", .normalize = false})[at];
    EXPECT_LT((last - hidden(row)[0][-1]).abs().max().item<float>(), 1e-5);
    const auto most = models::embed_rows(model, rows, {.mode = "max", .normalize = false})[at];
    EXPECT_LT((most - hidden(row)[0].amax(0)).abs().max().item<float>(), 1e-5);
  }
  const std::vector<std::vector<int64_t>> long_row{std::vector<int64_t>(10, 1)};
  EXPECT_THAT(error_of([&] { models::embed_rows(model, long_row, *pooling); }),
              HasSubstr("10 tokens; the folder allows 9"));
  EXPECT_THAT(error_of([&] { models::embed_rows(model, rows, {.mode = "men"}); }), HasSubstr("did you mean \"mean\""));
  // The files come along.
  models::save_model(model, temporary / "saved");
  EXPECT_EQ(read_file(temporary / "saved/1_Pooling/config.json"), read_file(folder / "1_Pooling/config.json"));
  EXPECT_EQ(models::sentence_pooling(temporary / "saved")->mode, "mean");
}

TEST(SentenceEmbedding, TextsAreGivenToTheTokenizerAsTheFolderSays) {
  const testing::TemporaryFolder temporary;
  const std::string mean = R"({"pooling_mode_mean_tokens": true})";
  const auto folder = sentence_folder(temporary / "model", kSentenceModules, mean);
  const auto text = [&](const std::string& given) {
    return models::sentence_text(given, *models::sentence_pooling(folder));
  };
  EXPECT_EQ(text("\t The SEA \n"), "The SEA");
  write_file(folder / "sentence_bert_config.json", R"({"max_seq_length": 9, "do_lower_case": true})");
  EXPECT_EQ(text("The SEA, ÉTÉ"), "the sea, été");
  const auto prompts = folder / "config_sentence_transformers.json";
  write_file(prompts, R"({"prompts": {"query": "Query: ", "passage": "P "}, "default_prompt_name": null})");
  EXPECT_EQ(text("Sea"), "sea");
  write_file(prompts, R"({"prompts": {"query": "Query: ", "passage": "P "}, "default_prompt_name": "query"})");
  EXPECT_EQ(text("Sea"), "query: sea");
  EXPECT_EQ(models::sentence_pooling(folder)->prompt, "Query: ");
  const auto error = [&] { return error_of([&] { (void)models::sentence_pooling(folder); }); };
  EXPECT_EQ(error(), "no error");
  write_file(folder / "1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true, "include_prompt": false})");
  EXPECT_THAT(error(), HasSubstr("include_prompt false is not supported"));
  write_file(prompts, R"({"prompts": {}})");
  EXPECT_EQ(error(), "no error");
  write_file(prompts, R"({"prompts": {"query": "Query: "}, "default_prompt_name": "passage"})");
  EXPECT_THAT(error(), HasSubstr("default_prompt_name \"passage\" is none of its \"prompts\""));
}

TEST(SentenceEmbedding, RefusesWhatItDoesNotDo) {
  int number = 0;
  const testing::TemporaryFolder temporary;
  const auto error = [&](const std::string& modules, const std::string& pooling) {
    const auto folder = sentence_folder(temporary / std::to_string(++number), modules, pooling);
    return error_of([&] { (void)models::sentence_pooling(folder); });
  };
  const std::string good = R"({"pooling_mode_cls_token": true})";
  EXPECT_EQ(error(kSentenceModules, good), "no error");
  EXPECT_THAT(error(kSentenceModules, "{}"), HasSubstr("says no pooling_mode"));
  EXPECT_THAT(error(kSentenceModules, R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true})"),
              HasSubstr("beside another one"));
  EXPECT_THAT(error(kSentenceModules, R"({"pooling_mode_weightedmean_tokens": true})"), HasSubstr("not supported"));
  EXPECT_THAT(error("{", good), HasSubstr("is not JSON"));
  EXPECT_THAT(error("[{}]", good), HasSubstr("without"));
  EXPECT_THAT(error(R"([{"path": "../x", "type": "a.Pooling"}])", good), HasSubstr("only folders beside it"));
  EXPECT_THAT(error(R"([{"path": "1_Dense", "type": "a.Dense"}])", good), HasSubstr("a module Dense"));
}

}  // namespace
}  // namespace levin::language_score_tests
