#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/strategies/gemini/chunk_plan.h"
#include "levin/strategies/gemini/chunk_search.h"
#include "levin/testing/error_of.h"

namespace levin::detail {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

ChunkParam sized(const std::string& name, std::vector<int64_t> sizes, c10::ScalarType dtype = at::kFloat) {
  return {name, std::move(sizes), dtype, nullptr};
}

std::vector<ChunkParam> four_params() {
  return {sized("a", {8, 8, 8}), sized("b", {4, 4}), sized("c", {4, 8, 2}), sized("d", {1, 1, 5})};
}

TEST(GeminiPlan, OneChunkHoldsWhatFitsOnAnyNumberOfRanks) {
  const auto params = four_params();
  for (const int ranks : {1, 2, 4}) {
    const auto plan = plan_chunks(params, 1024, ranks);
    ASSERT_EQ(plan.chunks.size(), 1);
    const auto& chunk = plan.chunks[0];
    EXPECT_EQ(chunk.utilized, 597);
    EXPECT_EQ(chunk.capacity, 1024);
    EXPECT_EQ(chunk.occupied, ranks == 1 ? 597 : 592 + 5 * ranks);
    int64_t valid = 0;
    for (int rank = 0; rank < ranks; ++rank) valid += valid_elements(chunk, params, ranks, rank);
    EXPECT_EQ(valid, 597);
    EXPECT_EQ(chunk.offsets[2], 528);
  }
  EXPECT_EQ(valid_elements(plan_chunks(params, 1024, 4).chunks[0], params, 4, 3), 128 + 4 + 16);
}

TEST(GeminiPlan, ChunksCloseWhenFullAndLargeParametersHaveTheirOwn) {
  const std::vector<ChunkParam> params{sized("a", {60}), sized("b", {50}), sized("big", {7, 50}), sized("c", {40}),
                                       sized("d", {30})};
  const auto plan = plan_chunks(params, 99, 2);
  EXPECT_EQ(plan.chunk_size, 100);
  ASSERT_EQ(plan.chunks.size(), 4);
  EXPECT_THAT(plan.chunk_of, ElementsAre(0, 1, 2, 1, 3));
  EXPECT_TRUE(plan.chunks[2].own);
  EXPECT_EQ(plan.chunks[2].capacity, 400);  // seven rows are eight on two ranks
  EXPECT_EQ(plan.chunks[2].utilized, 350);
  EXPECT_THAT(plan.describe(), HasSubstr("4 chunks of 100 elements, 75.7 % used (1 of them larger"));
}

TEST(GeminiPlan, OneDtypeAChunkAndTiedParametersOnce) {
  int embedding = 0;
  std::vector<ChunkParam> params{sized("embedding", {10}), sized("half", {10}, at::kDouble), sized("norm", {10}),
                                 sized("head", {10})};
  params[0].key = params[3].key = &embedding;
  const auto plan = plan_chunks(params, 64, 1);
  ASSERT_EQ(plan.chunks.size(), 2);
  EXPECT_THAT(plan.chunk_of, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(plan.chunks[0].params, ElementsAre(0, 2));
  EXPECT_EQ(plan.chunks[0].utilized, 20);
}

TEST(GeminiPlan, ByUsePlacesInTheOrderOfThePass) {
  const std::vector<ChunkParam> params{sized("a", {50}), sized("unused", {50}), sized("b", {50}), sized("c", {50})};
  const std::vector<std::string> used{"c", "a", "c", "b"};
  const auto plan = plan_chunks_by_use(params, used, 100, 1);
  EXPECT_THAT(plan.chunks[0].params, ElementsAre(3, 0));
  EXPECT_THAT(plan.chunks[1].params, ElementsAre(2, 1));
}

TEST(GeminiPlan, EveryParameterHasOnePlaceWithoutOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<ChunkParam> params;
    const auto ranks = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < 40; ++i)
      params.push_back(sized(std::to_string(i), {int64_t(random() % 20), 1 + int64_t(random() % 20)},
                             random() % 3 ? at::kFloat : at::kDouble));
    const auto plan = plan_chunks(params, 200, ranks);
    std::vector<int> met(params.size());
    for (const auto& chunk : plan.chunks) {
      int64_t end = 0;
      for (size_t i = 0; i < chunk.params.size(); ++i) {
        const auto& param = params[chunk.params[i]];
        EXPECT_EQ(param.dtype, chunk.dtype);
        EXPECT_EQ(chunk.offsets[i], end);
        end += param.padded_numel(ranks);
        ++met[chunk.params[i]];
      }
      EXPECT_LE(end, chunk.capacity);
      EXPECT_EQ(chunk.capacity % ranks, 0);
    }
    EXPECT_THAT(met, ::testing::Each(1));
  }
}

TEST(GeminiSearch, TakesTheSizeThatWastesLeast) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    std::vector<ChunkParam> params;
    for (int i = 0; i < 30; ++i) params.push_back(sized(std::to_string(i), {4 * (1 + int64_t(random() % 100))}));
    const ChunkSearchOptions options{.range = 2000, .min_chunk = 300, .interval = 64, .ranks = 4};
    const auto found = search_chunk_size(params, options);
    int64_t least = 1 << 30;
    for (int64_t size = 448; size <= 2448; size += 64) {
      const auto plan = plan_chunks(params, size, 4);
      int64_t waste = 0;
      for (const auto& chunk : plan.chunks) waste += chunk.capacity - chunk.occupied;
      if (size >= found.elements - 2048) least = std::min(least, waste);
    }
    EXPECT_EQ(found.elements % 64, 0);
    EXPECT_LE(found.waste, least);
    int64_t waste = 0;
    for (const auto& chunk : plan_chunks(params, found.elements, 4).chunks) waste += chunk.capacity - chunk.occupied;
    EXPECT_EQ(waste, found.waste);
  }
}

TEST(GeminiSearch, OutliersDoNotSetTheSize) {
  std::vector<ChunkParam> params;
  for (int i = 0; i < 40; ++i) params.push_back(sized(std::to_string(i), {64, 8}));
  params.push_back(sized("embedding", {50000, 8}));
  const ChunkSearchOptions options{.range = 4096, .min_chunk = 100, .interval = 1024, .ranks = 3};
  const auto found = search_chunk_size(params, options);
  EXPECT_LE(found.elements, 6000);
  EXPECT_EQ(found.elements % 3, 0);
  EXPECT_EQ(plan_chunks(params, found.elements, 3).chunks.back().own, true);
  check_chunk_size(66 * 8, params, 3);
}

TEST(GeminiSearch, LessThanTheLeastChunkIsOneThatStays) {
  const auto found = search_chunk_size(four_params(), {.ranks = 2});
  EXPECT_TRUE(found.keep_gathered);
  EXPECT_EQ(found.elements, 602);  // "d" takes 10 on two ranks
  EXPECT_EQ(found.waste, 0);
}

TEST(GeminiSearch, RefusalsNameTheParameterAndWhatToSet) {
  EXPECT_EQ(error_of([] { check_chunk_size(100, four_params(), 2); }),
            "[colossalai] chunk_size 100 is smaller than parameter \"a\" with 512 elements; set chunk_size to 512 or "
            "more, or to 0 to have it searched for");
  EXPECT_THAT(error_of([] { search_chunk_size({}, {}); }), HasSubstr("no parameters"));
}

}  // namespace
}  // namespace levin::detail
