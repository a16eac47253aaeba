#include "levin/generate/sampler.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/io/weights/weights.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::generate_tests {
namespace {

namespace fs = std::filesystem;
using at::Tensor;
using detail::SampledRow;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/generate/fixtures";

GenerateOptions options_of(const nlohmann::json& asked) {
  return {.temperature = asked.value("temperature", 1.0),
          .top_k = asked.value("top_k", int64_t{0}),
          .top_p = asked.value("top_p", 1.0),
          .min_p = asked.value("min_p", 0.0),
          .typical_p = asked.value("typical_p", 1.0),
          .repetition_penalty = asked.value("repetition_penalty", 1.0),
          .no_repeat_ngram_size = asked.value("no_repeat_ngram_size", int64_t{0})};
}

std::vector<const SampledRow*> pointers(const std::vector<SampledRow>& rows) {
  std::vector<const SampledRow*> all;
  for (const auto& row : rows) all.push_back(&row);
  return all;
}

// All filters of the file in one batch: a row must not see the options of another.
TEST(Sampler, ProbabilitiesAreThoseOfTransformers) {
  std::ifstream stream(kFixtures / "filters.json");
  const auto filters = nlohmann::json::parse(stream);
  const WeightFile file(kFixtures / "filters.safetensors");
  const auto logits = file.read("logits"), ids = file.read("ids");
  std::vector<GenerateOptions> options;
  for (const auto& asked : filters) options.push_back(options_of(asked));
  std::vector<SampledRow> rows;
  std::vector<Tensor> scores, expected;
  for (size_t i = 0; i < options.size(); ++i) {
    auto own = logits.clone();
    if (filters[i].contains("top_p") || filters[i].contains("typical_p"))
      own[3] += at::arange(own.size(1), at::kFloat) * 0.01;
    scores.push_back(own);
    expected.push_back(file.read("probabilities." + std::to_string(i)));
    for (int64_t r = 0; r < logits.size(0); ++r) {
      const auto* first = ids.const_data_ptr<int64_t>() + r * ids.size(1);
      rows.emplace_back(options[i], std::vector<int64_t>(first, first + ids.size(1)), 0);
    }
  }
  const auto all = pointers(rows);
  const auto found = at::softmax(detail::filtered(detail::penalized(at::cat(scores), all), all), 1);
  const auto difference = (found - at::cat(expected)).abs().amax(1).view({-1, logits.size(0)});
  for (size_t i = 0; i < options.size(); ++i)
    EXPECT_LT(difference[static_cast<int64_t>(i)].max().item<double>(), 1e-5) << filters[i];
}

/// A mix of settings under their names in transformers.
GenerateOptions mixed_options(const nlohmann::json& asked) {
  auto options = options_of(asked);
  options.max_new_tokens = 2;  // STEPS of the script
  options.min_length = asked.value("min_length", int64_t{0});
  options.top_h = asked.value("top_h", 0.0);
  options.epsilon_cutoff = asked.value("epsilon_cutoff", 0.0);
  options.eta_cutoff = asked.value("eta_cutoff", 0.0);
  options.encoder_repetition_penalty = asked.value("encoder_repetition_penalty", 1.0);
  options.encoder_no_repeat_ngram_size = asked.value("encoder_no_repeat_ngram_size", int64_t{0});
  options.begin_suppress_tokens = asked.value("begin_suppress_tokens", std::vector<int64_t>());
  options.forced_bos_token_id = asked.value("forced_bos_token_id", int64_t{-1});
  options.forced_eos_token_id = asked.value("forced_eos_token_id", std::vector<int64_t>());
  if (const auto decay = asked.find("exponential_decay_length_penalty"); decay != asked.end())
    options.exponential_decay_length_penalty.emplace(decay->at(0).get<int64_t>(), decay->at(1).get<double>());
  options.remove_invalid_values = asked.value("remove_invalid_values", false);
  options.renormalize_logits = asked.value("renormalize_logits", false);
  options.min_new_tokens = asked.value("min_new_tokens", int64_t{0});
  options.suppress_tokens = asked.value("suppress_tokens", std::vector<int64_t>());
  options.eos_token_ids = asked.value("eos_token_id", std::vector<int64_t>());
  options.bad_words = asked.value("bad_words_ids", std::vector<std::vector<int64_t>>());
  for (const auto& bias : asked.value("sequence_bias", nlohmann::json::array())) {
    const auto ids = bias[0].get<std::vector<int64_t>>();
    if (ids.size() == 1)
      options.logit_bias.emplace_back(ids[0], bias[1].get<double>());
    else
      options.sequence_bias.emplace_back(ids, bias[1].get<double>());
  }
  return options;
}

/// Compares each distribution of a file of mixes with what transformers' generate made of it, all in one batch.
void compare_mixes(const std::string& kind) {
  const char* named = std::getenv("LEVIN_SETTINGS");
  const auto folder = named ? fs::path(named) : kFixtures;
  std::ifstream stream(folder / (kind + ".json"));
  const auto mixes = nlohmann::json::parse(stream);
  const WeightFile file(folder / (kind + ".safetensors"));
  std::vector<GenerateOptions> options;
  for (const auto& mix : mixes) options.push_back(mixed_options(mix["settings"]));
  std::vector<SampledRow> rows;
  std::vector<std::string> names;
  for (size_t i = 0; i < options.size(); ++i) {
    options[i].min_new_tokens = std::min(options[i].min_new_tokens, options[i].max_new_tokens);
    check_options(options[i]);
    SampledRow row(options[i], mixes[i]["prompt"].get<std::vector<int64_t>>(), 0);
    for (const auto& id : mixes[i]["new"]) {
      names.push_back(std::to_string(row.new_tokens()) + " " + mixes[i].dump());
      rows.push_back(row);
      row.push(id.get<int64_t>());
    }
  }
  const auto all = pointers(rows);
  const auto found = at::softmax(detail::filtered(detail::penalized(file.read("logits"), all), all), 1);
  const auto difference = (found - file.read("probabilities")).abs().amax(1);
  ASSERT_EQ(difference.size(0), std::ssize(names));
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_LT(difference[static_cast<int64_t>(i)].item<double>(), 1e-5) << names[i];
  if (named)
    std::cout << names.size() << " distributions differ by at most " << difference.max().item<double>() << "\n";
}

// Random mixes over all architectures (sampling_settings.py).
TEST(Sampler, MixesOfSettingsGiveTheProbabilitiesOfTransformersGenerate) {
  compare_mixes("settings");
}

TEST(Sampler, MixesOfRulesGiveTheProbabilitiesOfTransformersGenerate) {
  compare_mixes("rules");
}

TEST(Sampler, FunctionsOfAProgramSeeTheRowAndChangeItsScores) {
  GenerateOptions options{.logit_bias = {{2, 1.5}}};
  std::vector<std::pair<size_t, size_t>> seen;
  options.on_logits = [&](const Tensor& scores, std::span<const RowTokens> of) {
    for (const auto& row : of) seen.emplace_back(row.row, row.ids.size());
    EXPECT_EQ(scores.scalar_type(), at::kFloat);
    EXPECT_NEAR(scores[0][2].item<double>(), 2.5, 1e-6) << "behind the rules";
    return scores + 1;
  };
  const GenerateOptions plain;
  GenerateOptions masked;
  masked.allowed_tokens = [](const RowTokens& row) { return std::vector<int64_t>{row.ids.back(), 3}; };
  const SampledRow one(options, {1, 2}, 7), other(plain, {1}, 8), third(masked, {0, 1}, 9);
  const std::vector<const SampledRow*> rows{&one, &other, &third};
  const auto scores = detail::penalized(at::full({3, 4}, 1.0F), rows);
  EXPECT_EQ(seen, (std::vector<std::pair<size_t, size_t>>{{7, 2}})) << "rows of other options are none of its matter";
  EXPECT_TRUE(scores[0].equal(at::tensor({2.0F, 2.0F, 3.5F, 2.0F})));
  EXPECT_TRUE(scores[1].equal(at::full({4}, 1.0F)));
  const auto gone = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(scores[2].equal(at::tensor({gone, 1.0F, gone, 1.0F})));
  options.on_logits = [](const Tensor& given, auto) { return given.narrow(1, 0, 2); };
  EXPECT_NE(testing::error_of([&] {
              (void)detail::penalized(at::full({3, 4}, 1.0F), rows);
            }).find("on_logits must return"),
            std::string::npos);
}

// A row alone, with logits that are no numbers.
TEST(Sampler, InvalidLogitsAreAnErrorUnlessTheyAreRemoved) {
  const auto logits = at::tensor({0.5F, std::numeric_limits<float>::quiet_NaN(), 0.25F}).view({1, 3});
  GenerateOptions options{.temperature = 0};
  const SampledRow plain(options, {1}, 0);
  const std::vector<const SampledRow*> row{&plain};
  EXPECT_NE(detail::try_sample(logits, row)[0].error.find("not numbers"), std::string::npos);
  options.remove_invalid_values = true;
  const auto token = detail::try_sample(logits, row)[0];
  EXPECT_EQ(token.error, "");
  EXPECT_EQ(token.id, 0);
  EXPECT_NEAR(token.logprob, at::log_softmax(at::tensor({0.5F, 0.0F, 0.25F}), 0)[0].item<double>(), 1e-6);
}

// 20,000 draws behind each set of filters, against the probabilities that transformers' processors gave.
TEST(Sampler, DrawsFollowTransformersProbabilities) {
  std::ifstream stream(kFixtures / "filters.json");
  const auto filters = nlohmann::json::parse(stream);
  const WeightFile file(kFixtures / "filters.safetensors");
  const auto logits = file.read("logits"), ids = file.read("ids");
  const int64_t draws = 20'000, words = logits.size(1);
  for (size_t i = 0; i < filters.size(); ++i) {
    const auto r = static_cast<int64_t>(i) % 3;  // rows whose logits are neither equal nor far apart
    auto options = options_of(filters[i]);
    options.seed = 100 + i;
    const auto* first = ids.const_data_ptr<int64_t>() + r * ids.size(1);
    const std::vector<int64_t> before(first, first + ids.size(1));
    std::vector<SampledRow> rows;
    for (int64_t n = 0; n < draws; ++n) rows.emplace_back(options, before, static_cast<uint64_t>(n));
    std::vector<double> counts(static_cast<size_t>(words));
    for (const auto& token : detail::sample(logits[r].expand({draws, words}), pointers(rows)))
      counts[static_cast<size_t>(token.id)] += 1;
    const auto expected = file.read("probabilities." + std::to_string(i))[r].to(at::kDouble);
    // Tokens of which fewer than 5 are expected count as one.
    double chi = 0, degrees = -1, rare_expected = 0, rare = 0;
    for (int64_t w = 0; w < words; ++w) {
      const auto share = static_cast<double>(draws) * expected[w].item<double>(),
                 count = counts[static_cast<size_t>(w)];
      if (share == 0) {
        EXPECT_EQ(count, 0) << filters[i] << " " << w;
      } else if (share < 5) {
        rare_expected += share, rare += count;
      } else {
        chi += std::pow(count - share, 2) / share;
        ++degrees;
      }
    }
    if (rare_expected >= 5) chi += std::pow(rare - rare_expected, 2) / rare_expected, ++degrees;
    // Wilson and Hilferty: 1 in 10,000.
    const auto z = 3.72, k = std::max(degrees, 1.0);
    EXPECT_LT(chi, k * std::pow(1 - 2 / (9 * k) + z * std::sqrt(2 / (9 * k)), 3)) << filters[i];
  }
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  const GenerateOptions options{.temperature = 1, .top_k = 6, .seed = 3};
  const int64_t draws = 20'000;
  const auto logits = at::tensor({0.0, 1.0, -1.0, 2.0, 0.5, -2.0, -3.0, -3.5}, at::kFloat);
  std::vector<SampledRow> rows;
  for (int64_t i = 0; i < draws; ++i) rows.emplace_back(options, std::vector<int64_t>{1}, static_cast<uint64_t>(i));
  std::vector<double> counts(8);
  for (const auto& token : detail::sample(logits.expand({draws, 8}), pointers(rows)))
    counts[static_cast<size_t>(token.id)] += 1;
  const auto p = at::softmax(logits.slice(0, 0, 6), 0);
  double chi = 0;
  for (int64_t i = 0; i < 6; ++i) {
    const auto expected = static_cast<double>(draws) * p[i].item<double>();
    chi += std::pow(counts[static_cast<size_t>(i)] - expected, 2) / expected;
  }
  EXPECT_LT(chi, 20.5);  // 5 degrees of freedom: 1 in 1000
  EXPECT_EQ(counts[6] + counts[7], 0);
}

TEST(Sampler, PresenceAndFrequencyCountNewTokensOnly) {
  const GenerateOptions options{.presence_penalty = 0.5, .frequency_penalty = 0.25};
  SampledRow row(options, {0, 1}, 0);
  for (const int64_t id : {1, 2, 2}) row.push(id);
  const SampledRow* one = &row;
  const auto scores = detail::penalized(at::full({1, 4}, 1.0F), {&one, 1});
  EXPECT_TRUE(at::allclose(scores, at::tensor({1.0, 0.25, 0.0, 1.0}, at::kFloat).unsqueeze(0)));
}

TEST(Sampler, BiasesComeBeforePenaltiesAndBadWordsDoNotCome) {
  GenerateOptions options{.repetition_penalty = 2};
  options.logit_bias = {{0, 1.0}, {1, -3.0}, {99, 5.0}};  // a token that is not there does nothing
  options.bad_words = {{3}, {1, 2}, {2, 1, 4}, {7, 0, 1, 2, 1, 5}};
  SampledRow row(options, {0, 1, 2}, 0);
  const SampledRow* one = &row;
  const auto inf = std::numeric_limits<float>::infinity();
  const auto of = [&] { return detail::penalized(at::full({1, 6}, 1.0F), {&one, 1}); };
  // Behind 2 only the word of one token is forbidden.
  EXPECT_TRUE(at::equal(of(), at::tensor({1.0F, -4.0F, 0.5F, -inf, 1.0F, 1.0F}).unsqueeze(0))) << of();
  row.push(1);  // now 2 and 4 are too; a word that is longer than all tokens is not there
  EXPECT_TRUE(at::equal(of(), at::tensor({1.0F, -4.0F, -inf, -inf, -inf, 1.0F}).unsqueeze(0))) << of();
  options.eos_token_ids = {2, 3};  // an end is no word of its own, but may be the end of one
  EXPECT_TRUE(at::equal(of(), at::tensor({1.0F, -4.0F, -inf, 1.0F, -inf, 1.0F}).unsqueeze(0))) << of();
}

TEST(Sampler, TheRandomNumberBelongsToSeedRowAndPosition) {
  const GenerateOptions options{.seed = 5};
  const auto logits = at::zeros({1, 1000});
  const auto drawn = [&](const GenerateOptions& o, size_t length, uint64_t number) {
    const SampledRow row(o, std::vector<int64_t>(length, 1), number);
    const SampledRow* one = &row;
    return detail::sample(logits, {&one, 1})[0].id;
  };
  EXPECT_EQ(drawn(options, 3, 2), drawn(options, 3, 2));
  EXPECT_NE(drawn(options, 3, 2), drawn(options, 4, 2));
  EXPECT_NE(drawn(options, 3, 2), drawn(options, 3, 1));
  const GenerateOptions other{.seed = 6};
  EXPECT_NE(drawn(options, 3, 2), drawn(other, 3, 2));
}

// Greedy rows have an operator of their own; rows that keep likely tokens do not go through it.
TEST(Sampler, GreedyTokensAreTheSameWithAndWithoutLikelyOnes) {
  GenerateOptions plain{.temperature = 0, .repetition_penalty = 1.5, .suppress_tokens = {4}};
  auto with_top = plain;
  with_top.top_logprobs = 2;
  const auto logits = at::arange(60, at::kFloat).mul(7).remainder(11).view({6, 10}).narrow(0, 1, 4);
  std::vector<std::vector<detail::SampledToken>> found;
  for (const auto* options : {&plain, &with_top}) {
    std::vector<SampledRow> rows;
    for (int64_t i = 0; i < 4; ++i) rows.emplace_back(*options, std::vector<int64_t>{i, 2 * i, 9}, i);
    const auto drawn = detail::draw(logits, pointers(rows));
    auto tokens = drawn.wait();
    ASSERT_EQ(tokens.size(), 4u);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(drawn.ids()[i].item<int64_t>(), tokens[static_cast<size_t>(i)].id);
    found.push_back(std::move(tokens));
  }
  const auto logs = logits.log_softmax(1);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(found[0][i].id, found[1][i].id);
    EXPECT_NE(found[0][i].id, 4);
    EXPECT_DOUBLE_EQ(found[0][i].logprob, found[1][i].logprob);
    EXPECT_FLOAT_EQ(static_cast<float>(found[0][i].logprob),
                    logs[static_cast<int64_t>(i)][found[0][i].id].item<float>());
    EXPECT_TRUE(found[0][i].top.empty());
    EXPECT_EQ(found[1][i].top.size(), 2u);
  }
}

// Tokens that somebody has found are taken where the row takes the likeliest one, and nowhere else.
TEST(Sampler, KnownTokensAreTakenWhereNothingElseIsAskedFor) {
  const auto logits = at::arange(40, at::kFloat).mul(7).remainder(11).view({2, 20});
  // Not what the logits say: where they come out, nobody has looked again.
  const kernels::GreedyTokens known{.ids = at::tensor({18, 19}, at::kLong),
                                    .found = at::tensor({18.0, -0.5, 3.0, 19.0, -0.25, 4.0}, at::kDouble).view({2, 3})};
  const auto takes = [&](const GenerateOptions& options) {
    std::vector<SampledRow> rows;
    for (int64_t i = 0; i < 2; ++i) rows.emplace_back(options, std::vector<int64_t>{i, 7}, i);
    const auto drawn = detail::draw(logits, pointers(rows), nullptr, &known);
    const auto tokens = drawn.wait();
    if (!drawn.ids().is_same(known.ids)) {
      const auto expected = detail::try_sample(logits, pointers(rows));
      for (size_t i = 0; i < 2; ++i) EXPECT_EQ(tokens[i].id, expected[i].id);
      return false;
    }
    EXPECT_EQ(tokens[0].id, 18);
    EXPECT_EQ(tokens[1].id, 19);
    EXPECT_EQ(tokens[1].logprob, -0.25);
    return true;
  };
  EXPECT_TRUE(takes({.temperature = 0}));
  EXPECT_TRUE(takes({.temperature = 0, .eos_token_ids = {3}}));
  EXPECT_FALSE(takes({.temperature = 1}));
  EXPECT_FALSE(takes({.temperature = 0, .top_logprobs = 1}));
  EXPECT_FALSE(takes({.temperature = 0, .suppress_tokens = {3}}));
  EXPECT_FALSE(takes({.temperature = 0, .repetition_penalty = 1.2}));
  EXPECT_FALSE(takes({.min_new_tokens = 1, .temperature = 0, .eos_token_ids = {3}}));
}

/// 16-bit logits give what the same numbers in float give, in every way to draw.
TEST(Sampler, NarrowLogitsGiveWhatTheyStandFor) {
  const auto narrow = torch::randn({3, 40}, at::kFloat).mul(3).to(at::kBFloat16);
  for (const GenerateOptions& options :
       {GenerateOptions{.temperature = 0}, GenerateOptions{.temperature = 0, .top_logprobs = 3},
        GenerateOptions{.temperature = 0, .repetition_penalty = 1.3, .suppress_tokens = {1, 5}},
        GenerateOptions{.temperature = 0.7, .top_k = 9, .top_p = 0.9, .repetition_penalty = 1.2, .seed = 3}}) {
    std::vector<SampledRow> rows;
    for (int64_t i = 0; i < 3; ++i) rows.emplace_back(options, std::vector<int64_t>{i, 7, 9}, i);
    const auto found = detail::try_sample(narrow, pointers(rows)),
               wanted = detail::try_sample(narrow.to(at::kFloat), pointers(rows));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(found[i].id, wanted[i].id);
      EXPECT_DOUBLE_EQ(found[i].logprob, wanted[i].logprob);
      EXPECT_EQ(found[i].top, wanted[i].top);
    }
  }
}

// What went wrong is told of the row as it was when its token was drawn.
TEST(Sampler, ATokenThatThereIsNotHasAnError) {
  const GenerateOptions greedy{.temperature = 0}, none{.temperature = 0, .suppress_tokens = {0, 1, 2}};
  std::vector<SampledRow> rows;
  rows.emplace_back(greedy, std::vector<int64_t>{1, 2}, 7);
  rows.emplace_back(none, std::vector<int64_t>{1, 2, 2}, 8);
  rows.emplace_back(greedy, std::vector<int64_t>{1}, 9);
  auto logits = at::zeros({3, 3});
  logits[0][1] = std::numeric_limits<float>::quiet_NaN();
  const auto drawn = detail::draw(logits, pointers(rows));
  for (auto& row : rows) row.push(0);
  const auto tokens = drawn.wait();
  EXPECT_EQ(tokens[0].error, "[generate] the model gives logits that are not numbers: row 7, position 2");
  EXPECT_EQ(tokens[1].error, std::string("[generate] ") + detail::kNoneAllowed +
                                 " (no_repeat_ngram_size, suppress_tokens, bad_words): row 8, position 3");
  EXPECT_EQ(tokens[2].error, "");
  EXPECT_EQ(tokens[2].id, 0);
  EXPECT_THROW(detail::check_tokens(tokens), Error);
  EXPECT_NO_THROW(detail::check_tokens(std::span(tokens).subspan(2)));
}

}  // namespace
}  // namespace levin::generate_tests
