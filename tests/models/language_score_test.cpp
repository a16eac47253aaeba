#include "levin/models/language_score.h"

#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/io/weights/weights.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

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
  EXPECT_THAT(error({std::vector<int64_t>(17, 1)}), HasSubstr("17 tokens are more than the 16"));
}

}  // namespace
}  // namespace levin::language_score_tests
