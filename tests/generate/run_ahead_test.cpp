// A step that begins before the tokens of the last one are known gives what a step after them gives.
#include <map>
#include <set>
#include <string_view>

#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "levin/generate/generate_detail.h"
#include "levin/testing/error_of.h"
#include "tests/generate/longer_model.h"
#include "tests/generate/played_graphs.h"

namespace levin::generate_tests {
namespace {

using detail::RunAhead;

const std::vector<Ids> kSixPrompts{{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17, 8, 1, 44, 23}, {13}, {4, 4, 6}, {20, 21},
                                   {33, 2, 8}};

/// What a run gave, and told on the way.
struct Told {
  std::vector<Generated> results;
  std::vector<GeneratedToken> tokens;
  /// Steps that had begun when a token was told.
  std::vector<int64_t> steps;
};

/// Calls of the embedding: one for each pass through a model.
int64_t passes = 0;

class CountPasses {
 public:
  CountPasses() {
    passes = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          passes += std::string_view(function.name()) == "aten::embedding";
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CountPasses() { at::removeCallback(handle_); }
  CountPasses(const CountPasses&) = delete;
  CountPasses& operator=(const CountPasses&) = delete;

 private:
  at::CallbackHandle handle_;
};

struct Case {
  models::Decoder model;
  std::vector<Ids> prompts;
  GenerateOptions options;
  const text::Tokenizer* tokenizer = nullptr;
  /// Whether a row continues; null: there is no callback.
  OnToken on_token = [](const GeneratedToken&) { return true; };
};

Told told(const Case& asked, RunAhead run_ahead, const std::shared_ptr<PlayedGraphs>& graphs = nullptr) {
  Told all;
  const CountPasses count;
  OnToken on_token;
  if (asked.on_token)
    on_token = [&](const GeneratedToken& token) {
      all.tokens.push_back(token);
      all.tokens.back().top_logprobs = {};
      all.steps.push_back(passes);
      return asked.on_token(token);
    };
  all.results =
      detail::generated(asked.model, asked.tokenizer, asked.prompts, asked.options, on_token, run_ahead, graphs);
  all.steps.push_back(passes);
  return all;
}

void expect_equal(const Told& found, const Told& expected) {
  EXPECT_EQ(found.tokens.size(), expected.tokens.size());
  for (size_t i = 0; i < std::min(found.tokens.size(), expected.tokens.size()); ++i) {
    SCOPED_TRACE("token " + std::to_string(i));
    const auto &mine = found.tokens[i], &other = expected.tokens[i];
    EXPECT_EQ(mine.row, other.row);
    EXPECT_EQ(mine.id, other.id);
    EXPECT_EQ(mine.text, other.text);
    EXPECT_EQ(mine.finish_reason, other.finish_reason);
    EXPECT_NEAR(mine.logprob, other.logprob, 1e-4);
  }
  EXPECT_EQ(found.results.size(), expected.results.size());
  for (size_t i = 0; i < expected.results.size(); ++i) {
    SCOPED_TRACE("row " + std::to_string(i));
    const auto &mine = found.results[i], &other = expected.results[i];
    EXPECT_EQ(mine.ids, other.ids);
    EXPECT_EQ(mine.text, other.text);
    EXPECT_EQ(mine.finish_reason, other.finish_reason);
    EXPECT_EQ(mine.prompt, other.prompt);
    EXPECT_EQ(mine.row, i);
    EXPECT_EQ(mine.logprobs.size(), other.logprobs.size());
    EXPECT_EQ(mine.top_logprobs.size(), other.top_logprobs.size());
    for (size_t k = 0; k < other.logprobs.size(); ++k) EXPECT_NEAR(mine.logprobs[k], other.logprobs[k], 1e-4);
  }
}

/// Step after step, ahead, and ahead as graphs; what ran ahead.
Told expect_same(const Case& asked) {
  const auto expected = told(asked, RunAhead::kNever);
  auto found = told(asked, RunAhead::kAlways);
  expect_equal(found, expected);
  SCOPED_TRACE("as graphs");
  expect_equal(told(asked, RunAhead::kWithGraphs, std::make_shared<PlayedGraphs>()), expected);
  return found;
}

/// Uploads of a run as graphs.
int64_t uploads_of(const Case& asked) {
  const auto graphs = std::make_shared<PlayedGraphs>();
  told(asked, RunAhead::kWithGraphs, graphs);
  return graphs->uploads;
}

/// Ends that come at different times in what a model generates greedily: some token of each row.
Ids ends_of(const Case& asked) {
  auto free = asked;
  free.options.eos_token_ids = {};
  const auto rows = told(free, RunAhead::kNever).results;
  Ids ends;
  for (size_t i = 0; i < rows.size(); i += 2) ends.push_back(rows[i].ids[(3 + 5 * i) % rows[i].ids.size()]);
  return ends;
}

TEST(RunAhead, TokensAreToldWhileTheNextStepRuns) {
  Case asked{longer_model("llama"), {kPrompts[0]}, {.max_new_tokens = 6, .temperature = 0}};
  EXPECT_EQ(told(asked, RunAhead::kNever).steps, (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 6}));
  // None behind the last token, whose place is known.
  EXPECT_EQ(told(asked, RunAhead::kAlways).steps, (std::vector<int64_t>{2, 3, 4, 5, 6, 6, 6}));
}

TEST(RunAhead, IsNotForTheCpuUnlessAsked) {
  Case asked{longer_model("llama"), {kPrompts[0]}, {.max_new_tokens = 4, .temperature = 0}};
  EXPECT_EQ(told(asked, RunAhead::kWithGraphs).steps, told(asked, RunAhead::kNever).steps);
}

TEST(RunAhead, GreedyRowsOfEveryKindOfModel) {
  for (const std::string name : {"llama", "llama_dynamic", "mistral", "gemma2", "bloom", "opt", "gpt2", "qwen3_moe"}) {
    SCOPED_TRACE(name);
    expect_same({longer_model(name), kPrompts, {.max_new_tokens = 24, .temperature = 0}});
  }
}

// 20 tokens are 19 steps: the first one has an upload, and those behind tokens that the step could not have found.
TEST(RunAhead, GreedyStepsFollowEachOtherWithoutAnUpload) {
  const Case asked{longer_model("llama"), kPrompts, {.max_new_tokens = 20, .temperature = 0}};
  EXPECT_EQ(uploads_of(asked), 1);
  const auto with = [&](auto&& change) {
    auto changed = asked;
    change(changed.options);
    expect_same(changed);
    return uploads_of(changed);
  };
  EXPECT_EQ(with([](auto& o) { o.eos_token_ids = {60}; }), 1);
  EXPECT_EQ(with([](auto& o) { o.min_new_tokens = 20; }), 1);  // no token that ends
  EXPECT_EQ(with([](auto& o) { o.temperature = 1; }), 19);
  EXPECT_EQ(with([](auto& o) { o.top_logprobs = 2; }), 19);
  EXPECT_EQ(with([](auto& o) { o.suppress_tokens = {4}; }), 19);
  EXPECT_EQ(with([](auto& o) { o.logit_bias = {{4, 1.0}}; }), 19);
  EXPECT_EQ(with([](auto& o) { o.bad_words = {{4, 5}}; }), 19);
  EXPECT_EQ(with([](auto& o) { o.no_repeat_ngram_size = 3; }), 19);
  EXPECT_EQ(with([](auto& o) { o.repetition_penalty = 1.1; }), 19);
  EXPECT_EQ(with([](auto& o) { o.presence_penalty = 0.1; }), 19);
  EXPECT_EQ(with([](auto& o) { o.frequency_penalty = 0.1; }), 19);
  // Ends are forbidden behind steps 1 to 3; step 4 begins with what is drawn there.
  EXPECT_EQ(with([](auto& o) { o.min_new_tokens = 4, o.eos_token_ids = {60}; }), 4);
}

TEST(RunAhead, RowsThatEndAtDifferentTimes) {
  for (const std::string name : {"llama", "bloom", "opt"}) {
    SCOPED_TRACE(name);
    Case asked{longer_model(name), kSixPrompts, {.max_new_tokens = 40, .temperature = 0}};
    asked.options.eos_token_ids = ends_of(asked);
    const auto found = expect_same(asked);
    std::set<size_t> lengths;
    for (const auto& row : found.results) lengths.insert(row.ids.size());
    EXPECT_GE(lengths.size(), 3u);
  }
}

TEST(RunAhead, DrawsWithPenaltiesAndFilters) {
  GenerateOptions options{.max_new_tokens = 30, .temperature = 0.9, .top_k = 30, .top_p = 0.95, .seed = 7};
  options.repetition_penalty = 1.2, options.frequency_penalty = 0.3, options.presence_penalty = 0.1;
  options.no_repeat_ngram_size = 3;
  options.min_new_tokens = 2;
  options.suppress_tokens = {4, 5};
  options.eos_token_ids = {3, 9, 12, 20, 31};
  for (const uint64_t seed : {7, 8, 9, 10}) {
    SCOPED_TRACE(seed);
    options.seed = seed;
    expect_same({longer_model("mistral"), kSixPrompts, options});
  }
  options.top_logprobs = 2;
  options.num_return_sequences = 3;
  const auto found = expect_same({longer_model("mistral"), kPrompts, options});
  EXPECT_EQ(found.results.size(), 9u);
}

TEST(RunAhead, MorePromptsThanRows) {
  for (const int64_t batch : {1, 2, 4})
    for (const bool ends : {false, true})
      for (const bool tells : {false, true}) {
        SCOPED_TRACE(::testing::Message() << batch << ends << tells);
        Case asked{longer_model("llama"), kSixPrompts, {.max_new_tokens = 12, .temperature = 0, .batch = batch}};
        if (ends) asked.options.eos_token_ids = ends_of(asked);
        if (!tells) asked.on_token = {};
        expect_same(asked);
        asked.options.num_return_sequences = 2;
        asked.options.temperature = 1;
        expect_same(asked);
      }
}

// No step is in vain while prompts wait: the same number of passes.
TEST(RunAhead, WhilePromptsWaitNoStepIsInVain) {
  Case asked{longer_model("llama"), kSixPrompts, {.max_new_tokens = 12, .temperature = 0, .batch = 2}};
  asked.on_token = {};
  EXPECT_EQ(told(asked, RunAhead::kAlways).steps, told(asked, RunAhead::kNever).steps);
}

TEST(RunAhead, StopStrings) {
  const auto tokenizer = text::Tokenizer::from_folder(kTests / "text/fixtures/gpt2");
  Case asked{longer_model("llama"), kPrompts, {.max_new_tokens = 20, .temperature = 0}, &tokenizer};
  const auto rows = told(asked, RunAhead::kNever).results;
  for (const auto& row : rows) ASSERT_GE(row.text.size(), 8u);
  asked.options.stop = {rows[0].text.substr(5, 2), rows[2].text.substr(3, 3)};
  const auto found = expect_same(asked);
  EXPECT_EQ(found.results[0].finish_reason, "stop");
  EXPECT_LT(found.results[0].ids.size(), 20u);
}

TEST(RunAhead, ACallbackEndsRows) {
  Case asked{longer_model("llama"), kSixPrompts, {.max_new_tokens = 15, .temperature = 0}};
  for (const int64_t batch : {2, 16}) {
    SCOPED_TRACE(batch);
    asked.options.batch = batch;
    std::map<size_t, size_t> seen;
    asked.on_token = [&](const GeneratedToken& token) {
      if (token.finish_reason.empty() && ++seen[token.row] < 3 + 2 * token.row) return true;
      seen[token.row] = 0;
      return false;
    };
    const auto found = expect_same(asked);
    EXPECT_EQ(found.results[0].finish_reason, "cancelled");
    EXPECT_EQ(found.results[0].ids.size(), 3u);
    EXPECT_EQ(found.results[5].ids.size(), 13u);
  }
}

TEST(RunAhead, AnExceptionOfACallbackPassesOn) {
  Case asked{longer_model("llama"), kPrompts, {.max_new_tokens = 15, .temperature = 0}};
  asked.on_token = [](const GeneratedToken& token) -> bool {
    if (token.row == 1) throw Error("[test] enough");
    return true;
  };
  EXPECT_EQ(testing::error_of([&] { told(asked, RunAhead::kAlways); }), "[test] enough");
}

// Learned positions: a token at position 16 would be an error.
TEST(RunAhead, RowsThatReachTheEndOfTheContext) {
  auto model = models::open_model(kTests / "models/fixtures/language/gpt2").decoder;  // 16 positions
  const std::vector<Ids> prompts{kPrompts[0], Ids(16, 3), Ids(9, 8), Ids(15, 4)};
  for (const int64_t batch : {1, 2, 16}) {
    SCOPED_TRACE(batch);
    const auto found = expect_same({model, prompts, {.max_new_tokens = 100, .temperature = 0, .batch = batch}});
    EXPECT_EQ(found.results[0].ids.size(), 12u);
    EXPECT_EQ(found.results[1].ids.size(), 1u);
  }
}

}  // namespace
}  // namespace levin::generate_tests
