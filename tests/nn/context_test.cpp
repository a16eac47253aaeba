// Which rank has which tokens, and computes which blocks.
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/torch.h>

#include "levin/nn/context/blocks.h"
#include "levin/testing/error_of.h"

namespace levin::nn {
namespace {

using ::testing::HasSubstr;
using Kind = ContextBlock::Kind;

/// A place in a group, for what communicates with nobody.
class Place : public Collective {
 public:
  Place(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(Tensor&, ReduceOp) override { fail(); }
  Tensor all_gather(const Tensor&) override { fail(); }
  void broadcast(Tensor&, int) override { fail(); }
  Tensor reduce_scatter(const Tensor&, ReduceOp) override { fail(); }
  void barrier(std::string_view) override { fail(); }
  c10::intrusive_ptr<c10d::ProcessGroup> process_group() const override { return {}; }
  c10::intrusive_ptr<c10d::Store> store() const override { return {}; }

 protected:
  std::shared_ptr<Collective> part(const std::vector<int>&, const std::string&) override { fail(); }

 private:
  [[noreturn]] static void fail() { throw std::logic_error("nobody is there"); }
  int rank_, size_;
};

ContextShare share_of(int size, bool balanced, int rank = 0) {
  return ContextShare(std::make_shared<Place>(rank, size), {.size = size}, balanced);
}

/// Positions of a rank's tokens.
std::vector<int64_t> positions(const ContextShare& share, int64_t length, int rank) {
  std::vector<int64_t> all;
  for (const auto& run : share.runs(length, rank))
    for (int64_t i = 0; i < run.count; ++i) all.push_back(run.first + i);
  return all;
}

TEST(ContextShare, ARankHasAChunkOfTheBeginningAndOneOfTheEnd) {
  const auto share = share_of(2, true);
  EXPECT_EQ(positions(share, 8, 0), (std::vector<int64_t>{0, 1, 6, 7}));
  EXPECT_EQ(positions(share, 8, 1), (std::vector<int64_t>{2, 3, 4, 5}));
  EXPECT_EQ(share.runs(8, 1).size(), 1U);
  EXPECT_EQ(positions(share_of(3, false), 7, 0), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(share_of(3, false).most(7), 3);
  const auto whole = torch::arange(8);
  EXPECT_TRUE(torch::equal(share_of(2, true, 0).take(whole, 0), torch::tensor({0, 1, 6, 7})));
}

TEST(ContextShare, TooFewTokensAreRefusedWithTheArithmetic) {
  EXPECT_THAT(testing::error_of([] { share_of(4, true).runs(7, 0); }),
              HasSubstr("7 tokens cannot be spread over 4 ranks: balanced they are cut into 2 x 4 = 8 chunks"));
  EXPECT_THAT(testing::error_of([] { share_of(4, false).runs(3, 0); }), HasSubstr("cut into 4 chunks"));
}

TEST(ContextBlocks, BalancedCausalIsOneBlockForEachRank) {
  const auto share = share_of(4, true);
  // Its own tokens, in their order; the first half of the keys before; the second half of the queries after.
  EXPECT_EQ(context_blocks(share, 64, 1, 1, true, 0), (std::vector<ContextBlock>{{{0, 16}, {0, 16}, Kind::kCausal}}));
  EXPECT_EQ(context_blocks(share, 64, 1, 0, true, 0), (std::vector<ContextBlock>{{{0, 16}, {0, 8}, Kind::kFull}}));
  EXPECT_EQ(context_blocks(share, 64, 1, 2, true, 0), (std::vector<ContextBlock>{{{8, 8}, {0, 16}, Kind::kFull}}));
  EXPECT_EQ(context_blocks(share, 64, 1, 2, false, 0), (std::vector<ContextBlock>{{{0, 16}, {0, 16}, Kind::kFull}}));
}

/// Every pair that attention sees is in exactly one block, and a block that says full has no other.
TEST(ContextBlocks, CoverWhatIsSeenOnce) {
  for (const int size : {1, 2, 3, 5})
    for (const bool balanced : {false, true})
      for (const bool causal : {false, true})
        for (const int64_t window : {0, 1, 4, 9, 100})
          for (const int64_t length : {10, 13, 24}) {
            if (!causal && window > 0) continue;
            const auto share = share_of(size, balanced);
            std::map<std::pair<int64_t, int64_t>, int> times;
            for (int rank = 0; rank < size; ++rank)
              for (int owner = 0; owner < size; ++owner) {
                const auto queries = positions(share, length, rank), keys = positions(share, length, owner);
                for (const auto& block : context_blocks(share, length, rank, owner, causal, window))
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
  const auto work = [](bool balanced, int rank) { return context_work(share_of(4, balanced), 64, rank, true, 0); };
  for (int rank = 1; rank < 4; ++rank) EXPECT_EQ(work(true, rank), work(true, 0));
  EXPECT_EQ(work(true, 0) * 4, 64 * 65 / 2);
  // In one run each the last rank has seven times the work of the first, nearly.
  EXPECT_GT(work(false, 3), 6 * work(false, 0));
}

TEST(ContextBlocks, ChunksOutsideOfTheWindowAreSkipped) {
  const auto share = share_of(4, false);
  EXPECT_TRUE(context_blocks(share, 64, 3, 0, true, 16).empty());
  EXPECT_FALSE(context_blocks(share, 64, 3, 2, true, 16).empty());
  EXPECT_LT(context_work(share, 64, 3, true, 16), 64 * 16);
}

}  // namespace
}  // namespace levin::nn
