// Prompts that an engine scores, beside rows that it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/random.h"
#include "levin/generate/engine.h"
#include "levin/models/language_score.h"
#include "levin/testing/error_of.h"
#include "tests/generate/longer_model.h"

namespace levin::generate_tests::scores {
namespace {

Ids prompt_of(Random& random, int64_t length) {
  Ids ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back(random.integer(0, 49));
  return ids;
}

struct Scored {
  std::optional<PromptScore> score;
  std::vector<Generated> done;
  std::string error;
};

EngineRequest score_request(Scored& into, Ids prompt, GenerateOptions options, bool only) {
  return {.prompt = std::move(prompt),
          .options = std::move(options),
          .on_score =
              [&into](PromptScore score) {
                EXPECT_FALSE(into.score);
                EXPECT_TRUE(into.done.empty());
                into.score = std::move(score);
              },
          .score_only = only,
          .on_done = [&into](const Generated& row) { into.done.push_back(row); },
          .on_error = [&into](const std::string& line) { into.error = line; }};
}

void expect_score(const Scored& found, const models::Decoder& model, const Ids& prompt, int64_t top) {
  auto whole = models::open_model(kTests / "models/fixtures/language/llama");
  whole.decoder = model;
  const auto expected = models::score_rows(whole, std::span(&prompt, 1), {.keep_outputs = true}).at(0);
  ASSERT_TRUE(found.score) << found.error;
  ASSERT_EQ(found.score->logprobs.size(), prompt.size() - 1);
  for (size_t t = 0; t < expected.logprobs.size(); ++t)
    EXPECT_NEAR(found.score->logprobs[t], expected.logprobs[t], 1e-4);
  ASSERT_EQ(found.score->top_logprobs.size(), top > 0 ? prompt.size() - 1 : 0);
  for (size_t t = 0; t < found.score->top_logprobs.size(); ++t) {
    ASSERT_EQ(std::ssize(found.score->top_logprobs[t]), top);
    const auto scores = expected.output[static_cast<int64_t>(t)].log_softmax(0);
    EXPECT_NEAR(found.score->top_logprobs[t][0].second, scores.max().item<double>(), 1e-4);
    for (const auto& [id, value] : found.score->top_logprobs[t]) EXPECT_NEAR(value, scores[id].item<double>(), 1e-4);
  }
}

TEST(EngineScores, AreThoseOfTheModelInChunks) {
  for (const std::string name : {"llama", "gemma2", "llama_dynamic", "gpt2"}) {
    auto model = longer_model(name);
    Random random(3, 0, 0);
    std::vector<Ids> prompts{{7}};
    for (int64_t i = 0; i < 8; ++i) prompts.push_back(prompt_of(random, 2 + 3 * i));
    for (const int64_t cache : {0, 64}) {
      Engine engine(model, nullptr, {.max_rows = 16, .cache_tokens = cache, .block_tokens = 4, .prefill_chunk = 8});
      std::vector<Scored> only(prompts.size()), then(prompts.size());
      const GenerateOptions greedy{.max_new_tokens = 12, .temperature = 0, .top_logprobs = 2};
      for (size_t i = 0; i < prompts.size(); ++i) {
        engine.submit(score_request(only[i], prompts[i], {.top_logprobs = 3}, true));
        engine.submit(score_request(then[i], prompts[i], greedy, false));
      }
      engine.run_until_idle();
      EXPECT_EQ(engine.stats().blocks_used, 0);
      const auto texts = generate(model, prompts, greedy);
      for (size_t i = 0; i < prompts.size(); ++i) {
        expect_score(only[i], model, prompts[i], 3);
        expect_score(then[i], model, prompts[i], 2);
        ASSERT_EQ(only[i].done.size(), 1u);
        EXPECT_EQ(only[i].done[0].finish_reason, "length");
        EXPECT_TRUE(only[i].done[0].ids.empty());
        ASSERT_EQ(then[i].done.size(), 1u);
        EXPECT_EQ(then[i].done[0].ids, texts[i].ids) << name << " " << i;
      }
    }
  }
}

/// A text gets its token at every step, whatever is scored meanwhile; a step scores few tokens.
TEST(EngineScores, DoNotStopTextsThatAreWritten) {
  auto model = longer_model("llama");
  Random random(4, 0, 0);
  Engine engine(model, nullptr, {.max_rows = 16});
  int64_t written = 0;
  engine.submit({.prompt = {5, 6}, .options = {.max_new_tokens = 70, .temperature = 0}, .on_token = [&](const auto&) {
                   ++written;
                   return true;
                 }});
  engine.step();
  std::vector<Scored> scored(100);
  for (auto& one : scored) {
    engine.submit(score_request(one, prompt_of(random, 70), {}, true));
  }
  const auto before = engine.stats();
  EXPECT_EQ(before.waiting, 100);
  int64_t steps = 0;
  bool is_short_written = false;
  for (; written < 70; ++steps) {
    const auto last = written;
    const auto passes = engine.stats().passes;
    engine.step();
    ASSERT_EQ(written, last + 1);
    ASSERT_LE(engine.stats().passes - passes, 2 + (steps == 5 ? 1 : 0));
    // Who comes later waits for none of them.
    if (steps == 4)
      engine.submit({.prompt = {9}, .options = {.max_new_tokens = 1}, .on_token = [&](const auto&) {
                       return is_short_written = true;
                     }});
    if (steps == 5) EXPECT_TRUE(is_short_written);
  }
  const auto done = std::ranges::count_if(scored, [](const auto& one) { return !one.done.empty(); });
  EXPECT_LT(done, 100);
  EXPECT_GE(done, steps - 1);  // and they are done one after the other
  const auto then = engine.stats().steps;
  engine.run_until_idle();
  for (const auto& one : scored) ASSERT_EQ(one.done.size(), 1u);
  // Alone they take more at a time.
  EXPECT_LT(engine.stats().steps - then, 12);
}

TEST(EngineScores, ThatNobodyWaitsForEnd) {
  auto model = longer_model("llama");
  Random random(5, 0, 0);
  Engine engine(model, nullptr, {.max_rows = 16, .prefill_chunk = 8});
  std::vector<Scored> scored(20);
  std::vector<uint64_t> ids;
  for (auto& one : scored) ids.push_back(engine.submit(score_request(one, prompt_of(random, 60), {}, true)));
  for (int i = 0; i < 3; ++i) engine.step();
  EXPECT_GT(engine.stats().running, 0);
  for (const auto id : ids) engine.cancel(id);
  engine.step();
  EXPECT_EQ(engine.stats().running + engine.stats().waiting + engine.stats().blocks_used, 0);
  EXPECT_EQ(engine.stats().cancelled, 20);
  EXPECT_FALSE(scored.back().score);
  Scored wrong;
  EXPECT_THAT(testing::error_of([&] {
                engine.submit(score_request(wrong, {1, 2}, {.temperature = 1, .num_return_sequences = 2}, true));
              }),
              ::testing::HasSubstr("score_only needs"));
}

}  // namespace
}  // namespace levin::generate_tests::scores
