#include "levin/generate/generate.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/temporary_folder.h"
#include "tests/generate/longer_model.h"

namespace levin::generate_tests {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::vector<Ids> ids_of(const std::vector<Generated>& rows) {
  std::vector<Ids> ids;
  for (const auto& row : rows) ids.push_back(row.ids);
  return ids;
}

GenerateOptions greedy(int64_t tokens) {
  return {.max_new_tokens = tokens, .temperature = 0};
}

TEST(Generate, GreedyTokensAreTransformersTokensForEveryArchitecture) {
  const auto fixtures = fixture();
  ASSERT_GE(fixtures.size(), 22u);
  for (const auto& [name, expected] : fixtures.items())
    EXPECT_EQ(ids_of(generate(longer_model(name), kPrompts, greedy(64))), expected["greedy"].get<std::vector<Ids>>())
        << name;
}

TEST(Generate, PromptsInChunksAndFewRowsAtOnceChangeNothing) {
  const auto fixtures = fixture();
  for (const std::string name : {"llama_dynamic", "gemma2", "bloom", "mistral", "opt"}) {
    auto options = greedy(24);
    options.prefill_chunk = 2;
    options.batch = 2;
    auto expected = fixtures[name]["greedy"].get<std::vector<Ids>>();
    for (auto& row : expected) row.resize(24);
    EXPECT_EQ(ids_of(generate(longer_model(name), kPrompts, options)), expected) << name;
  }
}

TEST(Generate, LogprobsAreThoseOfAPassWithoutCache) {
  for (const std::string name : {"llama_yarn", "gemma2", "bloom", "qwen2", "gpt_neox_odd"}) {
    auto model = longer_model(name);
    const auto rows = generate(model, kPrompts, greedy(40));
    const at::NoGradGuard no_grad;
    for (const auto& row : rows) {
      auto ids = kPrompts[row.prompt];
      ids.insert(ids.end(), row.ids.begin(), row.ids.end());
      const auto all = at::tensor(ids, at::kLong).unsqueeze(0);
      const auto logs = model(all)[0].log_softmax(-1);
      const auto first = static_cast<int64_t>(kPrompts[row.prompt].size()) - 1;
      for (size_t i = 0; i < row.ids.size(); ++i)
        ASSERT_NEAR(row.logprobs[i], logs[first + static_cast<int64_t>(i)][row.ids[i]].item<double>(), 1e-4)
            << name << " " << i;
    }
  }
}

TEST(Generate, BeamsAreTransformersBeams) {
  const auto fixtures = fixture();
  for (const auto& [name, expected] : fixtures.items()) {
    if (!expected.contains("beams")) continue;
    for (const auto& each : expected["beams"]) {
      const auto& asked = each["options"];
      GenerateOptions options{.max_new_tokens = 12,
                              .temperature = 0,
                              .repetition_penalty = asked.value("repetition_penalty", 1.0),
                              .no_repeat_ngram_size = asked.value("no_repeat_ngram_size", int64_t{0}),
                              .eos_token_ids = expected["ends"].get<Ids>(),
                              .num_beams = asked["num_beams"].get<int64_t>(),
                              .length_penalty = asked.value("length_penalty", 1.0),
                              .early_stopping = asked.value("early_stopping", false),
                              .num_return_sequences = asked["num_beams"].get<int64_t>()};
      options.renormalize_logits = asked.value("renormalize_logits", false);
      options.encoder_repetition_penalty = asked.value("encoder_repetition_penalty", 1.0);
      options.begin_suppress_tokens = asked.value("begin_suppress_tokens", Ids());
      if (asked.contains("exponential_decay_length_penalty"))
        options.exponential_decay_length_penalty =
            asked["exponential_decay_length_penalty"].get<std::pair<int64_t, double>>();
      const auto rows = generate(longer_model(name), {kPrompts[0]}, options);
      EXPECT_EQ(ids_of(rows), each["ids"].get<std::vector<Ids>>()) << name << asked;
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(rows[i].score, each["scores"][i].get<double>(), 1e-4);
    }
  }
}

TEST(Generate, PenaltiesAndEndsAreTransformers) {
  const auto fixtures = fixture();
  for (const auto& [name, expected] : fixtures.items()) {
    if (!expected.contains("penalized")) continue;
    GenerateOptions options{.max_new_tokens = 20,
                            .min_new_tokens = 6,
                            .temperature = 0,
                            .repetition_penalty = 1.3,
                            .no_repeat_ngram_size = 3,
                            .suppress_tokens = {4, 5},
                            .eos_token_ids = expected["ends"].get<Ids>()};
    const auto rows = generate(longer_model(name), {kPrompts[1]}, options);
    EXPECT_EQ(rows[0].ids, expected["penalized"].get<Ids>()) << name;
    const bool ended = std::ranges::count(options.eos_token_ids, rows[0].ids.back()) > 0;
    EXPECT_EQ(rows[0].finish_reason, ended ? "stop" : "length");
  }
}

TEST(Generate, ARowDrawsTheSameAloneAndInABatch) {
  auto model = longer_model("mistral");
  GenerateOptions options{.max_new_tokens = 20, .top_k = 30, .top_p = 0.95, .seed = 7};
  options.eos_token_ids = {3, 9};
  options.num_return_sequences = 2;
  const auto together = generate(model, kPrompts, options);
  ASSERT_EQ(together.size(), 6u);
  EXPECT_NE(together[0].ids, together[1].ids);
  options.batch = 1;
  const auto alone = generate(model, kPrompts, options);
  EXPECT_EQ(ids_of(together), ids_of(alone));
  // The number of a row counts, not what was generated before it.
  const auto first = generate(model, {kPrompts[0]}, options);
  EXPECT_EQ(first[0].ids, together[0].ids);
  EXPECT_EQ(first[1].ids, together[1].ids);
  options.seed = 8;
  EXPECT_NE(ids_of(generate(model, kPrompts, options)), ids_of(alone));
}

// The second half of a call alone, as a run does that was interrupted.
TEST(Generate, RowsDrawByTheirNumbers) {
  auto model = longer_model("llama");
  const std::vector<Ids> prompts{{7, 3, 11}, {9, 30, 2}, {13, 4}, {1, 2}};
  const auto whole = ids_of(generate(model, prompts, {.max_new_tokens = 12, .num_return_sequences = 2, .seed = 5}));
  for (const bool paged : {false, true}) {
    const auto rest =
        generate(model, std::vector<Ids>(prompts.begin() + 2, prompts.end()),
                 {.max_new_tokens = 12, .num_return_sequences = 2, .seed = 5, .first_row = 4, .paged = paged});
    EXPECT_EQ(ids_of(rest), std::vector<Ids>(whole.begin() + 4, whole.end()));
    EXPECT_EQ(rest[0].row, 0u);
  }
}

TEST(Generate, ARuleOfAProgramEndsARow) {
  auto model = longer_model("llama");
  auto options = greedy(40);
  const auto plain = generate(model, kPrompts, options);
  for (const bool paged : {false, true}) {
    options.paged = paged;
    options.stop_when = [](const RowTokens& row) { return row.row == 1 && row.ids.size() == row.prompt_length + 7; };
    const auto rows = generate(model, kPrompts, options);
    EXPECT_EQ(rows[1].ids, Ids(plain[1].ids.begin(), plain[1].ids.begin() + 7));
    EXPECT_EQ(rows[1].finish_reason, "stop");
    EXPECT_EQ(rows[0].ids, plain[0].ids);
  }
}

TEST(Generate, TimeEndsRowsAndThoseThatHaveNotBegun) {
  auto model = longer_model("llama");
  auto options = greedy(60);
  options.batch = 1;
  options.max_time = 1e-6;
  const auto rows = generate(model, kPrompts, options);
  ASSERT_EQ(rows.size(), kPrompts.size());
  for (const auto& row : rows) {
    EXPECT_EQ(row.finish_reason, "time");
    EXPECT_LE(row.ids.size(), 1u);
  }
  EXPECT_GE(std::ranges::count(rows, Ids(), &Generated::ids), std::ssize(rows) - 1) << "the first may have begun";
  options.num_beams = 3;
  for (const auto& row : generate(model, kPrompts, options)) EXPECT_EQ(row.finish_reason, "time");
}

TEST(Generate, EndsAtTheEndOfTheContext) {
  auto model = models::open_model(kTests / "models/fixtures/language/gpt2").decoder;  // 16 positions
  const auto rows = generate(model, {kPrompts[0], Ids(16, 3)}, greedy(100));
  EXPECT_EQ(rows[0].ids.size(), 12u);  // the last one needs no position
  EXPECT_EQ(rows[0].finish_reason, "length");
  EXPECT_EQ(rows[1].ids.size(), 1u);
}

TEST(Generate, ACallbackSeesEveryTokenAndCanEndARow) {
  auto model = longer_model("llama");
  std::vector<Ids> seen(3);
  std::vector<std::string> reasons(3);
  const auto rows = generate(model, kPrompts, greedy(10), [&](const GeneratedToken& token) {
    seen[token.row].push_back(token.id);
    reasons[token.row] = token.finish_reason;
    return token.row != 1 || seen[1].size() < 4;
  });
  EXPECT_EQ(seen, ids_of(rows));
  EXPECT_EQ(rows[1].ids.size(), 4u);
  EXPECT_EQ(rows[1].finish_reason, "cancelled");
  EXPECT_EQ(reasons[0], "length");
  EXPECT_EQ(rows[0].ids, generate(model, {kPrompts[0]}, greedy(10))[0].ids);
}

TEST(Generate, LikeliestTokensAreKept) {
  auto options = greedy(5);
  options.top_logprobs = 3;
  const auto rows = generate(longer_model("llama"), kPrompts, options);
  for (const auto& row : rows) {
    ASSERT_EQ(row.top_logprobs.size(), 5u);
    for (size_t i = 0; i < 5; ++i) {
      ASSERT_EQ(row.top_logprobs[i].size(), 3u);
      EXPECT_EQ(row.top_logprobs[i][0].first, row.ids[i]);
      EXPECT_DOUBLE_EQ(row.top_logprobs[i][0].second, row.logprobs[i]);
      EXPECT_GE(row.top_logprobs[i][1].second, row.top_logprobs[i][2].second);
    }
  }
}

TEST(Generate, TheModeOfTheModelStays) {
  auto model = longer_model("llama");
  model->train();
  generate(model, {kPrompts[0]}, greedy(2));
  EXPECT_TRUE(model->is_training());
  EXPECT_TRUE(model->blocks[0]->is_training());
}

TEST(Generate, BadInputIsOneLine) {
  auto model = models::open_model(kTests / "models/fixtures/language/gpt2").decoder;
  const auto error = [&](const std::vector<Ids>& prompts, const GenerateOptions& options) {
    return error_of([&] { generate(model, prompts, options); });
  };
  EXPECT_THAT(error({Ids(17, 3)}, greedy(1)), HasSubstr("prompt 0 has 17 tokens, the context of the model has 16"));
  EXPECT_THAT(error({{1}, {}}, greedy(1)), HasSubstr("prompt 1 has no tokens"));
  EXPECT_THAT(error({{50}}, greedy(1)), HasSubstr("the id 50; the model has 0 to 49"));
  EXPECT_THAT(error({{1}}, greedy(0)), HasSubstr("max_new_tokens 0 must be positive"));
  EXPECT_THAT(error({{1}}, {.temperature = -1}), HasSubstr("temperature -1"));
  EXPECT_THAT(error({{1}}, {.top_p = 1.5}), HasSubstr("top_p 1.5 must be from 0 to 1"));
  EXPECT_THAT(error({{1}}, {.top_k = -3}), HasSubstr("top_k -3"));
  EXPECT_THAT(error({{1}}, {.stop = {"a"}}), HasSubstr("stop strings need a tokenizer"));
  EXPECT_THAT(error({{1}}, {.num_beams = 2}), HasSubstr("beams need temperature 0"));
  GenerateOptions all{.temperature = 0};
  for (int64_t i = 0; i < 50; ++i) all.suppress_tokens.push_back(i);
  EXPECT_THAT(error({{1}}, all), HasSubstr("every token is forbidden"));
  EXPECT_TRUE(generate(model, std::vector<Ids>{}, greedy(1)).empty());
}

TEST(Generate, SettingsOfTheFolderThatAreNotObeyedAreNamed) {
  const levin::testing::TemporaryFolder folder;
  EXPECT_TRUE(unused_generation_settings(folder.path()).empty());
  write_file(folder.path() / "generation_config.json",
             R"({"eos_token_id": 2, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05, "num_beams": 1,
                 "no_repeat_ngram_size": 3, "suppress_tokens": null, "forced_eos_token_id": 2})");
  EXPECT_EQ(unused_generation_settings(folder.path(), {.repetition_penalty = 1.05}),
            (std::vector<std::string>{"no_repeat_ngram_size 3", "forced_eos_token_id 2"}));
  write_file(folder.path() / "generation_config.json",
             R"({"min_length": 30, "stop_strings": ["a"], "length_penalty": 2.0, "early_stopping": "never"})");
  EXPECT_EQ(unused_generation_settings(folder.path(), {.stop = {"a"}}), std::vector<std::string>{"min_length 30"});
  EXPECT_EQ(unused_generation_settings(folder.path(), {.stop = {"a"}, .num_beams = 2}),
            (std::vector<std::string>{"min_length 30", "length_penalty 2.0", "early_stopping \"never\""}));
}

}  // namespace
}  // namespace levin::generate_tests
