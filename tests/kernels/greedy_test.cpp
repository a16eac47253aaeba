// The likeliest token of each row, and its log probability.
#include "levin/kernels/decode/greedy.h"

#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "tests/kernels/greedy_cases.h"

namespace levin::greedy_tests {
namespace {

TEST(Greedy, IsArgmaxAndLogSoftmax) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) expect_greedy_rows(at::kCPU, dtype);
  expect_greedy_rows(at::kCPU, at::kDouble);
}

TEST(Greedy, EqualNumbersNanAndInfinities) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) expect_greedy_oddities(at::kCPU, dtype);
}

TEST(Greedy, StepsThatAdvanceFindWhatGreedyTokensFinds) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) expect_greedy_advance(at::kCPU, dtype);
}

TEST(Greedy, PlacesOfOtherSizesAreRefused) {
  const auto error_with = [](const Tensor& positions, const Tensor& found) {
    return testing::error_of([&] {
      kernels::greedy_advance(torch::zeros({2, 5}), {.ids = torch::zeros({2}, at::kLong),
                                                     .positions = positions,
                                                     .found = found,
                                                     .turn = torch::zeros({1}, at::kLong)});
    });
  };
  const auto positions = torch::zeros({2}, at::kLong), found = torch::zeros({2, 2, 3}, at::kDouble);
  EXPECT_EQ(error_with(positions, found), "no error");
  EXPECT_NE(error_with(torch::zeros({3}, at::kLong), found).find("ids and positions [2]"), std::string::npos);
  EXPECT_NE(error_with(positions, torch::zeros({2, 3, 3}, at::kDouble)).find("places [turns, 2, 3]"),
            std::string::npos);
}

TEST(Greedy, OfMetaTensorsHasSizes) {
  const auto logits = torch::empty({3, 50}, at::kMeta);
  const auto [ids, found] = kernels::greedy_tokens(logits, logits);
  EXPECT_EQ(ids.sizes(), at::IntArrayRef{3});
  EXPECT_EQ(ids.scalar_type(), at::kLong);
  EXPECT_EQ(found.sizes(), (at::IntArrayRef{3, 3}));
  EXPECT_EQ(found.scalar_type(), at::kDouble);
}

TEST(Greedy, ScoresOfOtherSizesAreRefused) {
  const auto error = testing::error_of([] {
    kernels::greedy_tokens(torch::zeros({2, 5}), torch::zeros({2, 5}, at::kDouble));
  });
  EXPECT_NE(error.find("[greedy_tokens] needs logits and scores"), std::string::npos) << error;
}

}  // namespace
}  // namespace levin::greedy_tests
