// Models that several ranks have together: the logits and the tokens of one process.
#include <algorithm>
#include <filesystem>
#include <set>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/generate/engine.h"
#include "levin/models/folder.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/ranks.h"

namespace levin::tensor_generate_tests {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using testing::run_ranks;
using Ids = std::vector<int64_t>;

const fs::path kFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";
const std::vector<Ids> kPrompts{{7, 3, 11, 42, 5}, {9, 30}};

/// The decoders of the tests, but those that differ from another one in their positions only.
std::vector<std::string> decoder_folders() {
  std::vector<std::string> names;
  // OLMoE's norms over all heads together cannot be split.
  const std::set<std::string> left_out{"llama_linear",  "llama_rope3",  "llama_yarn",
                                       "gpt2_sequence", "opt_sequence", "olmoe"};
  for (const auto& entry : fs::directory_iterator(kFolders))
    if (!left_out.contains(entry.path().filename()) && models::open_model_meta(entry.path()).decoder)
      names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TensorRanks shared(Collective& group) {
  return {&group, [](Collective*) {}};
}

GenerateOptions greedy(int64_t tokens) {
  return {.max_new_tokens = tokens, .temperature = 0};
}

double distance(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>() / std::max(1.0, b.abs().max().item<double>());
}

/// What one process gives, computed before ranks are forked.
struct Expected {
  std::string name;
  int64_t heads;
  Tensor logits;
  std::vector<Ids> tokens;
};

std::vector<Expected> expected_of_one_process() {
  const at::NoGradGuard no_grad;
  std::vector<Expected> all;
  for (const auto& name : decoder_folders()) {
    auto model = models::open_model(kFolders / name).decoder;
    Expected expected{.name = name, .heads = model->options.num_heads};
    const auto ids = at::arange(12, at::kLong).view({2, 6});
    const auto mask = at::tensor({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, at::kLong).view({2, 6});
    expected.logits = model(ids, Tensor(), mask);
    if (model->head)
      for (const auto& row : generate(model, kPrompts, greedy(3))) expected.tokens.push_back(row.ids);
    all.push_back(std::move(expected));
  }
  return all;
}

class OverRanks : public ::testing::TestWithParam<int> {};

TEST_P(OverRanks, LogitsAndTokensAreThoseOfOneProcess) {
  static const auto all = expected_of_one_process();
  ASSERT_GE(all.size(), 18u);
  const int ranks = GetParam();
  run_ranks(ranks, [&](Collective& group) {
    const at::NoGradGuard no_grad;
    for (const auto& expected : all) {
      if (expected.heads < ranks) {
        EXPECT_THAT(error_of([&] { models::open_model(kFolders / expected.name, {.ranks = shared(group)}); }),
                    AllOf(HasSubstr(fmt::format("has {} heads, which {} ranks", expected.heads, ranks)),
                          HasSubstr("blocks.0.attention")));
        continue;
      }
      auto opened = models::open_model(kFolders / expected.name, {.ranks = shared(group)});
      auto& model = opened.decoder;
      const auto ids = at::arange(12, at::kLong).view({2, 6});
      const auto mask = at::tensor({0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0}, at::kLong).view({2, 6});
      EXPECT_LT(distance(model(ids, Tensor(), mask), expected.logits), 1e-5) << expected.name;
      if (!model->head) continue;
      std::vector<Ids> tokens;
      for (const auto& row : generate(model, kPrompts, greedy(3))) tokens.push_back(row.ids);
      EXPECT_EQ(tokens, expected.tokens) << expected.name;
      // The split parameters are smaller by the number of ranks, a head or a row more or less.
      for (const auto& parameter : opened.split->parameters()) {
        if (!parameter.is_split()) continue;
        EXPECT_LT(parameter.tensor.numel(), at::empty(parameter.slice.whole, at::kMeta).numel()) << parameter.name;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, OverRanks, ::testing::Values(2, 3, 4));

TEST(TensorGenerate, AllRanksFollowRankZero) {
  auto model = models::open_model(kFolders / "llama").decoder;
  GenerateOptions options{.max_new_tokens = 8, .temperature = 1.5, .seed = 5};
  std::vector<Ids> alone;
  for (const auto& row : generate(model, kPrompts, options)) alone.push_back(row.ids);
  run_ranks(2, [&](Collective& group) {
    auto split = models::open_model(kFolders / "llama", {.ranks = shared(group)}).decoder;
    auto own = options;
    if (group.rank() == 1) own.seed = 99;  // it would draw other tokens
    std::vector<Ids> ids;
    for (const auto& row : generate(split, kPrompts, own)) ids.push_back(row.ids);
    EXPECT_EQ(ids, alone);
    // Whoever ends a row on rank 0 ends it everywhere.
    const auto stopped = generate(split, kPrompts, own,
                                  [&](const GeneratedToken& token) { return group.rank() == 1 || token.row != 1; });
    EXPECT_EQ(stopped[1].ids.size(), 1u);
    EXPECT_EQ(stopped[1].finish_reason, "cancelled");
    EXPECT_EQ(stopped[0].ids, alone[0]);
    // Beams too.
    const auto beams = generate(split, kPrompts, {.max_new_tokens = 5, .temperature = 0, .num_beams = 3});
    EXPECT_EQ(beams.size(), 2u);
    return fmt::format("{}", fmt::join(beams[0].ids, " "));
  });
}

TEST(TensorGenerate, AnEngineOfRankZeroIsFollowed) {
  auto model = models::open_model(kFolders / "llama").decoder;
  const std::vector<Ids> prompts{{7, 3, 11, 42, 7, 3}, {9, 30}, {13}, {7, 3, 11, 42, 7, 5}};
  std::vector<Ids> alone;
  for (size_t i = 0; i < prompts.size(); ++i)
    alone.push_back(generate(model, {prompts[i]}, {.max_new_tokens = 9, .temperature = 0.7, .seed = i}).at(0).ids);
  run_ranks(2, [&](Collective& group) {
    auto split = models::open_model(kFolders / "llama", {.ranks = shared(group)}).decoder;
    for (const int64_t lookup : {0, 3}) {
      if (group.rank() > 0) {
        EXPECT_THAT(error_of([&] { Engine(split, nullptr); }), HasSubstr("rank 0 has the engine"));
        follow_engine(split);
        continue;
      }
      EXPECT_THAT(error_of([&] { follow_engine(split); }), HasSubstr("for ranks other than 0"));
      std::vector<Ids> found(prompts.size());
      Engine engine(
          split, nullptr,
          {.max_rows = 3, .cache_tokens = 64, .block_tokens = 4, .prefill_chunk = 4, .prompt_lookup = lookup});
      for (size_t i = 0; i < prompts.size(); ++i)
        engine.submit({.prompt = prompts[i],
                       .options = {.max_new_tokens = 9, .temperature = 0.7, .seed = i},
                       .on_done = [&, i](const Generated& row) { found[i] = row.ids; }});
      engine.run_until_idle();
      EXPECT_EQ(found, alone) << lookup;
      EXPECT_EQ(engine.stats().guessed_tokens > 0, lookup > 0);
    }
  });
}

TEST(TensorGenerate, WhatCannotBeSplitIsRefused) {
  run_ranks(2, [&](Collective& group) {
    EXPECT_THAT(error_of([&] { models::open_model(kFolders / "llama", {.quantize = "int8", .ranks = shared(group)}); }),
                HasSubstr("is not split over ranks"));
  });
}

}  // namespace
}  // namespace levin::tensor_generate_tests
