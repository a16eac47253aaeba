// Which rank has which tokens, and computes which blocks.
#include <fstream>
#include <iterator>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/context/blocks.h"
#include "levin/nn/context/picture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::context_block_tests {
namespace {

using namespace levin::nn;

using ::testing::HasSubstr;
using Kind = ContextBlock::Kind;

/// Positions of a rank's tokens.
std::vector<int64_t> positions(const ContextLayout& layout, int64_t length, int rank) {
  std::vector<int64_t> all;
  for (const auto& run : layout.runs(length, rank))
    for (int64_t i = 0; i < run.count; ++i) all.push_back(run.first + i);
  return all;
}

TEST(ContextLayout, ARankHasAChunkOfTheBeginningAndOneOfTheEnd) {
  const auto layout = ContextLayout{2, true};
  EXPECT_EQ(positions(layout, 8, 0), (std::vector<int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(positions(layout, 8, 1), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(layout.runs(8, 1).size(), 1U);
  EXPECT_EQ(positions(ContextLayout{3, false}, 7, 0), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ((ContextLayout{3, false}.most(7)), 3);
}

TEST(ContextLayout, TooFewTokensAreRefusedWithTheArithmetic) {
  EXPECT_THAT(testing::error_of([] {
                ContextLayout{4, true}.runs(7, 0);
              }),
              HasSubstr("7 tokens cannot be spread over 4 ranks: balanced they are cut into 2 x 4 = 8 chunks"));
  EXPECT_THAT(testing::error_of([] { ContextLayout{4, false}.runs(3, 0); }), HasSubstr("cut into 4 chunks"));
}

TEST(ContextBlocks, BalancedCausalIsOneBlockForEachRank) {
  const auto layout = ContextLayout{4, true};
  // Its own tokens, in their order; the first half of the keys before; the second half of the queries after.
  EXPECT_EQ(context_blocks(layout, 64, 1, 1, true, 0), (std::vector<ContextBlock>{{{0, 16}, {0, 16}, Kind::kCausal}}));
  EXPECT_EQ(context_blocks(layout, 64, 1, 0, true, 0), (std::vector<ContextBlock>{{{0, 16}, {0, 8}, Kind::kFull}}));
  EXPECT_EQ(context_blocks(layout, 64, 1, 2, true, 0), (std::vector<ContextBlock>{{{8, 8}, {0, 16}, Kind::kFull}}));
  EXPECT_EQ(context_blocks(layout, 64, 1, 2, false, 0), (std::vector<ContextBlock>{{{0, 16}, {0, 16}, Kind::kFull}}));
}

/// Every pair that attention sees is in exactly one block, and a block that says full has no other.
TEST(ContextBlocks, CoverWhatIsSeenOnce) {
  for (const int size : {1, 2, 3, 5})
    for (const bool balanced : {false, true})
      for (const bool causal : {false, true})
        for (const int64_t window : {0, 1, 4, 9, 100})
          for (const int64_t length : {10, 13, 24}) {
            if (!causal && window > 0) continue;
            const auto layout = ContextLayout{size, balanced};
            std::map<std::pair<int64_t, int64_t>, int> times;
            for (int rank = 0; rank < size; ++rank)
              for (int owner = 0; owner < size; ++owner) {
                const auto queries = positions(layout, length, rank), keys = positions(layout, length, owner);
                for (const auto& block : context_blocks(layout, length, rank, owner, causal, window))
                  for (int64_t i = 0; i < block.queries.count; ++i)
                    for (int64_t j = 0; j < block.keys.count; ++j) {
                      const auto q = queries[static_cast<size_t>(block.queries.first + i)];
                      const auto k = keys[static_cast<size_t>(block.keys.first + j)];
                      const bool seen = !causal || (k <= q && (window == 0 || k > q - window));
                      if (block.kind == Kind::kFull) {
                        EXPECT_TRUE(seen) << q << " " << k;
                      } else if (block.kind == Kind::kCausal) {
                        EXPECT_EQ(seen, j <= i) << q << " " << k;
                      }
                      if (seen) ++times[{q, k}];
                    }
              }
            for (int64_t q = 0; q < length; ++q)
              for (int64_t k = 0; k < length; ++k) {
                const bool seen = !causal || (k <= q && (window == 0 || k > q - window));
                ASSERT_EQ((times[{q, k}]), seen ? 1 : 0)
                    << size << balanced << causal << window << " " << q << " " << k;
              }
          }
}

TEST(ContextBlocks, BalanceGivesEveryRankAsMuch) {
  const auto work = [](bool balanced, int rank) { return context_work(ContextLayout{4, balanced}, 64, rank, true, 0); };
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(work(true, rank), work(true, 0));
  EXPECT_EQ(work(true, 0) * 4, 64 * 65 / 2);
  // In one run each the last rank has seven times the work of the first, nearly.
  EXPECT_GT(work(false, 3), 6 * work(false, 0));
}

TEST(ContextBlocks, ChunksOutsideOfTheWindowAreSkipped) {
  const auto layout = ContextLayout{4, false};
  EXPECT_TRUE(context_blocks(layout, 64, 3, 0, true, 16).empty());
  EXPECT_FALSE(context_blocks(layout, 64, 3, 2, true, 16).empty());
  EXPECT_LT(context_work(layout, 64, 3, true, 16), 64 * 16);
}

/// The picture of the docs is what the ranks do. LEVIN_WRITE_PICTURES=1 writes it.
TEST(ContextBlocks, ThePictureOfTheDocsIsDrawnFromThem) {
  const auto path = std::filesystem::path(testing::source_dir()) / "docs/images/context_parallel.svg";
  const auto drawn = to_svg(draw_context(4));
  if (std::getenv("LEVIN_WRITE_PICTURES")) std::ofstream(path, std::ios::binary) << drawn;
  std::ifstream file(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), drawn);
}

}  // namespace
}  // namespace levin::context_block_tests
