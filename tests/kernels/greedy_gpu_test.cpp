// The likeliest token of each row on the GPU, against the CPU's.
#include <gtest/gtest.h>

#include "levin/testing/gpu.h"
#include "tests/kernels/greedy_cases.h"

namespace levin::greedy_tests {
namespace {

class GreedyGpu : public levin::testing::GpuTest {};

TEST_F(GreedyGpu, IsArgmaxAndLogSoftmax) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) expect_greedy_rows(at::kCUDA, dtype);
}

TEST_F(GreedyGpu, EqualNumbersNanAndInfinities) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) expect_greedy_oddities(at::kCUDA, dtype);
}

TEST_F(GreedyGpu, StepsThatAdvanceFindWhatGreedyTokensFinds) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) expect_greedy_advance(at::kCUDA, dtype);
}

TEST_F(GreedyGpu, OfNoRows) {
  const auto logits = torch::empty({0, 50}, at::kCUDA);
  const auto [ids, found] = kernels::greedy_tokens(logits, logits);
  EXPECT_EQ(ids.sizes(), at::IntArrayRef{0});
  EXPECT_EQ(found.sizes(), (at::IntArrayRef{0, 3}));
}

}  // namespace
}  // namespace levin::greedy_tests
