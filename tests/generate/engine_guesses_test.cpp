// Requests whose next tokens are guessed: what they give is what they give without guesses.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/random.h"
#include "levin/generate/engine.h"
#include "levin/testing/error_of.h"
#include "tests/generate/longer_model.h"

namespace levin::generate_tests {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

struct GuessedRequest {
  Ids prompt;
  GenerateOptions options;
  std::vector<Generated> alone;
  std::map<size_t, Generated> done;
  Ids told;  // of the first sequence
  std::string error;
};

/// Prompts that repeat themselves and each other's beginnings, with options of every kind.
std::vector<GuessedRequest> some_requests(const models::Decoder& model, uint64_t seed) {
  Random random(seed, 0, 0);
  std::vector<GuessedRequest> requests(10);
  for (size_t i = 0; i < requests.size(); ++i) {
    auto& request = requests[i];
    for (auto n = random.integer(1, 18); n > 0; --n) request.prompt.push_back(random.integer(3, 7));
    if (i % 3 == 0) request.prompt.insert(request.prompt.begin(), {5, 6, 7, 5, 6, 7, 5, 6});
    auto& o = request.options;
    o = {.max_new_tokens = random.integer(1, 24), .temperature = i % 2 == 0 ? 0.0 : 0.9, .seed = random.bits64()};
    if (random.chance(0.4)) o.top_k = 4;
    if (random.chance(0.3)) o.repetition_penalty = 1.2;
    if (random.chance(0.3)) o.eos_token_ids = {random.integer(0, 49), random.integer(0, 49)};
    if (random.chance(0.3)) o.num_return_sequences = 2;
    request.alone = generate(model, {request.prompt}, o);
  }
  return requests;
}

EngineStats run_all(Engine& engine, std::vector<GuessedRequest>& requests) {
  for (auto& request : requests)
    engine.submit({.prompt = request.prompt,
                   .options = request.options,
                   .on_token =
                       [&](const GeneratedToken& token) {
                         if (token.row == 0) request.told.push_back(token.id);
                         return true;
                       },
                   .on_done = [&](const Generated& row) { request.done[row.row] = row; },
                   .on_error = [&](const std::string& line) { request.error = line; }});
  engine.run_until_idle();
  return engine.stats();
}

void expect_as_alone(const std::vector<GuessedRequest>& requests, const std::string& what) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto& request = requests[i];
    ASSERT_EQ(request.error, "") << what;
    ASSERT_EQ(request.done.size(), request.alone.size()) << what;
    EXPECT_EQ(request.told, request.alone[0].ids) << what << ", request " << i;
    for (const auto& [row, found] : request.done) {
      EXPECT_EQ(found.ids, request.alone[row].ids) << what << ", request " << i;
      EXPECT_EQ(found.finish_reason, request.alone[row].finish_reason) << what;
      EXPECT_LE(found.taken_tokens, found.guessed_tokens);
    }
  }
}

TEST(EngineGuesses, PromptLookupChangesNothing) {
  for (const std::string name : {"llama", "gemma2", "bloom", "llama_dynamic"}) {
    auto model = longer_model(name);
    auto requests = some_requests(model, 4);
    Engine engine(model, nullptr,
                  {.max_rows = 4, .cache_tokens = 96, .block_tokens = 4, .prefill_chunk = 16, .prompt_lookup = 4});
    const auto stats = run_all(engine, requests);
    expect_as_alone(requests, name);
    EXPECT_GT(stats.taken_tokens, 0) << name;
    EXPECT_GE(stats.guessed_tokens, stats.taken_tokens) << name;
    EXPECT_EQ(stats.blocks_used, 0) << name;
  }
}

// Drawn tokens too: the draft draws by the random numbers of the row.
TEST(EngineGuesses, ADraftModelChangesNothing) {
  auto model = longer_model("llama"), other = longer_model("qwen3"), short_context = longer_model("llama");
  short_context->options.max_positions = 14;
  const std::vector<std::pair<std::string, models::Decoder>> drafts{
      {"itself", model}, {"another", other}, {"a short context", short_context}};
  for (const auto& [what, draft] : drafts)
    for (const int64_t cache : {60, 400}) {
      auto requests = some_requests(model, 7);
      Engine engine(model, nullptr,
                    {.max_rows = 5, .cache_tokens = cache, .block_tokens = 4, .draft = draft, .draft_tokens = 3});
      const auto stats = run_all(engine, requests);
      expect_as_alone(requests, what);
      EXPECT_GT(stats.guessed_tokens, 0) << what;
      // Itself is always right, but for tokens that end a row before the guesses do.
      if (what == "itself") EXPECT_GT(2 * stats.taken_tokens, stats.guessed_tokens);
      if (cache == 60) EXPECT_GT(stats.preempted, 0) << what;
      EXPECT_EQ(stats.blocks_used, 0) << what;
    }
}

TEST(EngineGuesses, GenerateThroughTheEngineGuessesToo) {
  auto model = longer_model("gpt2");
  GenerateOptions options{.max_new_tokens = 30, .temperature = 0};
  const auto plain = generate(model, kPrompts, options);
  options.paged = true;
  options.prompt_lookup = 5;
  const auto found = generate(model, kPrompts, options);
  int64_t taken = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(found[i].ids, plain[i].ids);
    taken += found[i].taken_tokens;
  }
  EXPECT_GT(taken, 0);
}

TEST(EngineGuesses, BadInputIsOneLine) {
  auto model = longer_model("llama");
  const auto error = [&](const EngineOptions& options) { return error_of([&] { Engine(model, nullptr, options); }); };
  EXPECT_THAT(error({.prompt_lookup = -1}), HasSubstr("prompt_lookup -1 must not be negative"));
  EXPECT_THAT(error({.draft_tokens = 0}), HasSubstr("draft_tokens must be positive"));
  EXPECT_THAT(error({.prompt_lookup = 2, .draft = model}), HasSubstr("either prompt_lookup or a draft model"));
  auto sizes = model->options;
  sizes.vocab_size = 60;
  EXPECT_THAT(error({.draft = models::Decoder(sizes)}), HasSubstr("another vocabulary: 60 tokens, the model has 50"));
  EXPECT_THAT(error({.draft = longer_model("llama_dynamic")}), HasSubstr("dynamic rotary positions"));
}

}  // namespace
}  // namespace levin::generate_tests
