#include "levin/generate/speculation.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/generate/generate.h"
#include "levin/models/folder.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::generate_tests {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using detail::SampledRow;
using testing::error_of;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

const fs::path kModels = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

models::Decoder open(const std::string& name) {
  return models::open_model(kModels / name).decoder;
}

std::vector<Ids> ids_of(const std::vector<Generated>& rows) {
  std::vector<Ids> ids;
  for (const auto& row : rows) ids.push_back(row.ids);
  return ids;
}

/// Prompts that repeat themselves, of unequal length.
const std::vector<Ids> kPrompts{{7, 3, 11, 42, 7, 3}, {9, 30, 2, 2, 17, 8, 9, 30}, {13}, {5, 5, 5}};

int64_t guessed(const std::vector<Generated>& rows) {
  int64_t sum = 0;
  for (const auto& row : rows) sum += row.guessed_tokens;
  return sum;
}
int64_t taken(const std::vector<Generated>& rows) {
  int64_t sum = 0;
  for (const auto& row : rows) sum += row.taken_tokens;
  return sum;
}

TEST(Speculation, LooksUpWhatFollowedTheLastTokens) {
  const Ids ids{1, 2, 3, 4, 1, 2, 9, 1, 2};
  EXPECT_EQ(detail::looked_up(ids, 2, 3), (Ids{3, 4, 1}));
  EXPECT_EQ(detail::looked_up(ids, 3, 3), (Ids{3, 4, 1}));  // 9, 1, 2 came once: the two last decide
  EXPECT_EQ(detail::looked_up(Ids{4, 4}, 2, 5), (Ids{4}));
  EXPECT_TRUE(detail::looked_up(Ids{1, 2, 3}, 2, 5).empty());
  EXPECT_TRUE(detail::looked_up(Ids{1}, 2, 5).empty());
  EXPECT_TRUE(detail::looked_up(ids, 2, 0).empty());
}

// The tiny models repeat themselves soon: guesses hold often, and by other numbers in every row.
TEST(Speculation, PromptLookupGivesTheTokensOfAPlainRun) {
  int64_t all = 0;
  for (const std::string name : {"llama", "gpt2", "bloom", "mistral", "gemma2", "llama_dynamic", "opt"}) {
    auto model = open(name);
    for (const double temperature : {0.0, 0.8}) {
      GenerateOptions options{.max_new_tokens = 40, .temperature = temperature, .top_k = 5, .seed = 3};
      options.num_return_sequences = 2;
      options.batch = 3;
      const auto plain = generate(model, kPrompts, options);
      options.prompt_lookup = 4;
      const auto found = generate(model, kPrompts, options);
      EXPECT_EQ(ids_of(found), ids_of(plain)) << name << " " << temperature;
      EXPECT_GT(guessed(found), 0) << name;
      for (size_t i = 0; i < found.size(); ++i)
        for (size_t t = 0; t < found[i].ids.size(); ++t)
          ASSERT_NEAR(found[i].logprobs[t], plain[i].logprobs[t], 1e-4) << name;
      all += taken(found);
    }
  }
  EXPECT_GT(all, 100);
}

TEST(Speculation, PenaltiesSeeTheGuessesBefore) {
  auto model = open("llama");
  GenerateOptions options{.max_new_tokens = 30,
                          .min_new_tokens = 9,
                          .temperature = 0,
                          .repetition_penalty = 1.2,
                          .presence_penalty = 0.3,
                          .frequency_penalty = 0.2,
                          .no_repeat_ngram_size = 4};
  options.eos_token_ids = {generate(model, kPrompts, options)[0].ids[4]};
  const auto plain = generate(model, kPrompts, options);
  options.prompt_lookup = 5;
  EXPECT_EQ(ids_of(generate(model, kPrompts, options)), ids_of(plain));
  options.prompt_lookup = 0;
  options.draft = open("llama");
  EXPECT_EQ(ids_of(generate(model, kPrompts, options)), ids_of(plain));
}

TEST(Speculation, ADraftModelChangesNoGreedyToken) {
  auto model = open("llama");
  GenerateOptions options{.max_new_tokens = 40, .temperature = 0};
  const auto plain = generate(model, kPrompts, options);
  // Itself, which is always right; and others, which hardly are.
  options.draft = open("llama");
  auto found = generate(model, kPrompts, options);
  EXPECT_EQ(ids_of(found), ids_of(plain));
  EXPECT_EQ(taken(found), guessed(found));
  EXPECT_GT(guessed(found), 20);
  for (const std::string name : {"mistral", "qwen2", "gpt2"}) {
    options.draft = open(name);
    if (options.draft->options.vocab_size != model->options.vocab_size) continue;
    options.batch = 2;
    found = generate(model, kPrompts, options);
    EXPECT_EQ(ids_of(found), ids_of(plain)) << name;
    EXPECT_LT(taken(found), guessed(found)) << name;
  }
}

/// 20,000 pairs of tokens with guesses, against the probabilities of the model alone.
double chi_square(const std::map<Ids, double>& counts, const std::map<Ids, double>& shares, double draws) {
  double chi = 0;
  for (const auto& [ids, share] : shares) {
    const auto found = counts.contains(ids) ? counts.at(ids) : 0;
    chi += std::pow(found - draws * share, 2) / (draws * share);
  }
  return chi;
}

// Three tokens in a row by the rules of guesses, over random tables: what comes must have the distribution of the
// model.
TEST(Speculation, TokensFollowTheModelExactly) {
  const int64_t words = 4, draws = 20'000;
  const auto generator = at::detail::createCPUGenerator(11);
  const auto model = at::randn({words, words}, generator), draft = at::randn({words, words}, generator);
  const GenerateOptions options{.temperature = 0.9, .top_k = 3, .seed = 9};
  std::vector<SampledRow> rows;
  for (int64_t i = 0; i < draws; ++i) rows.emplace_back(options, Ids{1}, static_cast<uint64_t>(i));
  std::vector<const SampledRow*> all;
  for (const auto& row : rows) all.push_back(&row);
  const auto logits_of = [&](const Tensor& table, int64_t last) { return table[last]; };
  // Two guesses of each row.
  detail::Guesses guesses{.ids = std::vector<Ids>(rows.size())};
  auto states = rows;
  for (int step = 0; step < 2; ++step) {
    std::vector<Tensor> logits;
    std::vector<const SampledRow*> drawing;
    for (const auto& state : states) {
      logits.push_back(logits_of(draft, state.ids().back()));
      drawing.push_back(&state);
    }
    guesses.scores.push_back(detail::filtered(at::stack(logits), drawing));
    const auto ids = detail::chosen(guesses.scores.back(), drawing);
    for (size_t i = 0; i < rows.size(); ++i) {
      guesses.ids[i].push_back(ids.const_data_ptr<int64_t>()[i]);
      states[i].push(guesses.ids[i].back());
    }
  }
  // Every fourth row has one guess less.
  for (size_t i = 0; i < rows.size(); i += 4) guesses.ids[i].pop_back();
  std::vector<Tensor> logits;
  for (const auto& tokens : guesses.tokens(all))
    for (const auto id : tokens) logits.push_back(logits_of(model, id));
  const auto found = detail::agreed(at::stack(logits), all, guesses);
  // Rows of one token are not finished: they count by their first token, the others by two.
  const auto fractions_of = [&](int64_t last) {
    const SampledRow* one = &rows[0];
    return at::softmax(detail::filtered(model[last].unsqueeze(0), {&one, 1}), 1, at::kDouble)[0];
  };
  std::map<Ids, double> first, first_shares, pairs, pair_shares;
  double firsts_of_pairs[4] = {};
  for (const auto& row : found) {
    first[{row[0].id}] += 1;
    if (row.size() < 2) continue;
    pairs[{row[0].id, row[1].id}] += 1;
    firsts_of_pairs[row[0].id] += 1;
  }
  for (int64_t a = 0; a < words; ++a) {
    const auto share = fractions_of(1)[a].item<double>();
    if (share > 0) first_shares[{a}] = share;
  }
  EXPECT_LT(chi_square(first, first_shares, static_cast<double>(draws)), 13.8);  // 2 degrees of freedom: 1 in 1000
  EXPECT_EQ(first.size(), 3u);
  // The second token given the first: whether there is one depends on the first alone.
  for (int64_t a = 0; a < words; ++a) {
    if (firsts_of_pairs[a] < 1000) continue;
    std::map<Ids, double> shares;
    for (int64_t b = 0; b < words; ++b)
      if (const auto share = fractions_of(a)[b].item<double>(); share > 0) shares[{a, b}] = share;
    EXPECT_LT(chi_square(pairs, shares, firsts_of_pairs[a]), 13.8) << a;
  }
  int64_t whole = 0;
  for (const auto& row : found) whole += row.size() == 3;
  EXPECT_GT(whole, 100);
  EXPECT_LT(whole, draws / 2);
}

TEST(Speculation, ADraftModelKeepsTheDistributionOfARun) {
  auto model = open("llama");
  const GenerateOptions plain{
      .max_new_tokens = 2, .temperature = 1.5, .top_k = 4, .num_return_sequences = 2000, .seed = 1};
  auto with = plain;
  with.seed = 2;  // numbers of its own
  with.draft = open("mistral");
  ASSERT_EQ(with.draft->options.vocab_size, model->options.vocab_size);
  auto more = plain;
  more.batch = with.batch = 500;
  const auto counts = [&](const GenerateOptions& options) {
    std::map<Ids, double> all;
    for (const auto& row : generate(model, {Ids{7, 3, 11}}, options)) all[row.ids] += 1;
    return all;
  };
  const auto a = counts(more), b = counts(with);
  double chi = 0, degrees = -1;
  for (const auto& [ids, count] : a) {
    const auto other = b.contains(ids) ? b.at(ids) : 0;
    chi += std::pow(count - other, 2) / (count + other);
    ++degrees;
  }
  for (const auto& [ids, count] : b) EXPECT_TRUE(a.contains(ids) || count < 8);
  EXPECT_GT(degrees, 8);
  EXPECT_LT(chi, degrees + 4 * std::sqrt(2 * degrees));
}

TEST(Speculation, EndsAtTheEndOfTheContext) {
  auto model = open("gpt2");  // 16 positions
  GenerateOptions options{.max_new_tokens = 100, .temperature = 0};
  const std::vector<Ids> prompts{{5, 5, 5}, Ids(15, 3), Ids(16, 3), {2}};
  const auto plain = generate(model, prompts, options);
  options.prompt_lookup = 8;
  EXPECT_EQ(ids_of(generate(model, prompts, options)), ids_of(plain));
  options.prompt_lookup = 0;
  options.draft = open("gpt2");
  for (const int64_t batch : {1, 2, 16}) {
    options.batch = batch;
    EXPECT_EQ(ids_of(generate(model, prompts, options)), ids_of(plain)) << batch;
  }
}

TEST(Speculation, BadInputIsOneLine) {
  auto model = open("gpt2");
  const auto error = [&](const GenerateOptions& options) {
    return error_of([&] { generate(model, std::vector<Ids>{{1}}, options); });
  };
  EXPECT_THAT(error({.prompt_lookup = -1}), HasSubstr("prompt_lookup -1 must not be negative"));
  GenerateOptions options;
  options.draft = open("gpt2");
  options.draft_tokens = 0;
  EXPECT_THAT(error(options), HasSubstr("draft_tokens must be positive"));
  options.draft_tokens = 2;
  options.prompt_lookup = 2;
  EXPECT_THAT(error(options), HasSubstr("either prompt_lookup or a draft model"));
  options.prompt_lookup = 0;
  auto sizes = model->options;
  sizes.vocab_size = 60;
  options.draft = models::Decoder(sizes);
  EXPECT_THAT(error(options), HasSubstr("the draft model has another vocabulary: 60 tokens, the model has 50"));
  EXPECT_THAT(error({.temperature = 0, .num_beams = 2, .prompt_lookup = 2}),
              HasSubstr("beams go without prompt_lookup"));
}

}  // namespace
}  // namespace levin::generate_tests
