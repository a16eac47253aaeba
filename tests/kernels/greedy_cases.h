#pragma once

#include <cmath>
#include <limits>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/kernels/decode/greedy.h"

namespace levin::greedy_tests {

using at::Tensor;

/// Against argmax and log_softmax on the CPU, in double.
inline void expect_greedy(const Tensor& logits, const Tensor& scores) {
  SCOPED_TRACE(::testing::Message() << logits.device() << " " << logits.scalar_type() << " " << logits.sizes() << ", "
                                    << logits.stride(0) << " apart");
  const auto [ids, found] = kernels::greedy_tokens(logits, scores);
  ASSERT_EQ(ids.device(), logits.device());
  ASSERT_EQ(ids.scalar_type(), at::kLong);
  ASSERT_EQ(found.scalar_type(), at::kDouble);
  ASSERT_EQ(found.sizes(), (at::IntArrayRef{logits.size(0), 3}));
  const auto all = logits.to(at::kCPU, at::kDouble), ranked = scores.to(at::kCPU, at::kDouble);
  const auto expected = ranked.argmax(1), place = expected.unsqueeze(1);
  EXPECT_TRUE(ids.cpu().equal(expected)) << ids << expected;
  const auto host = found.cpu();
  EXPECT_TRUE(host.select(1, 0).equal(expected.to(at::kDouble)));
  const auto logs = all.log_softmax(1).gather(1, place).squeeze(1);
  const auto near = logits.is_cuda() ? 2e-5 : 1e-3;  // ATen's sums of a long row on the CPU are float, one by one
  EXPECT_TRUE(at::allclose(host.select(1, 1), logs, near, near, /*equal_nan=*/true)) << host.select(1, 1) << logs;
  EXPECT_TRUE(at::allclose(host.select(1, 2), ranked.gather(1, place).squeeze(1), 0, 0, /*equal_nan=*/true));
  const auto again = kernels::greedy_tokens(logits, scores);
  EXPECT_TRUE(at::allclose(again.found, found, 0, 0, /*equal_nan=*/true));
}

/// Rows of any size and at any address, alone and with scores of their own.
inline void expect_greedy_rows(c10::Device device, at::ScalarType dtype) {
  torch::manual_seed(5);
  for (const int64_t words : {1, 7, 33, 1000, 4099, 32000, 50257, 128256})
    for (const int64_t rows : {1, 3, 17, 300}) {
      if (rows * words > 3'000'000) continue;
      const auto logits = (torch::randn({rows, words}) * 4).to(dtype).to(device);
      expect_greedy(logits, logits);
      auto scores = logits.clone();
      scores.scatter_(1, scores.argmax(1, true), -std::numeric_limits<double>::infinity());
      if (words > 1) expect_greedy(logits, scores);
      expect_greedy(logits.narrow(0, rows / 2, rows - rows / 2), scores.narrow(0, rows / 2, rows - rows / 2));
      if (words > 10) expect_greedy(logits.narrow(1, 3, words - 4), logits.narrow(1, 3, words - 4));
    }
}

/// Equal numbers, NaN, infinities: each kind in its own row.
inline void expect_greedy_oddities(c10::Device device, at::ScalarType dtype) {
  constexpr auto kInf = std::numeric_limits<float>::infinity();
  for (const int64_t words : {40, 20001, 60000}) {
    auto logits = torch::zeros({8, words});
    logits[1].fill_(-kInf);
    logits[2].fill_(-3).index_put_({words - 1}, 2).index_put_({words / 2}, 2).index_put_({words / 2 + 1}, 2);
    logits[3].index_put_({words - 1}, NAN).index_put_({words / 3}, NAN).index_put_({0}, 9);
    logits[4].index_put_({words - 2}, kInf);
    logits[5].fill_(-kInf).index_put_({words - 3}, -7);
    logits[6].fill_(NAN);
    logits[7].fill_(-60000).index_put_({1}, 60000);
    logits = logits.to(dtype).to(device);
    expect_greedy(logits, logits);
    auto scores = logits.clone();
    scores.fill_(-kInf);  // no token is allowed
    expect_greedy(logits, scores);
  }
}

/// Steps one after the other: each finds what greedy_tokens finds, and leaves the last places as they are.
inline void expect_greedy_advance(c10::Device device, at::ScalarType dtype) {
  torch::manual_seed(6);
  for (const int64_t words : {5, 4099, 32000})
    for (const int64_t rows : {1, 3, 17, 70})
      for (const int64_t turns : {1, 2, 3}) {
        SCOPED_TRACE(::testing::Message() << device << dtype << " " << rows << " rows of " << words << ", " << turns);
        auto inputs = torch::arange(2 * rows + 1, torch::TensorOptions().dtype(at::kLong).device(device));
        const auto positions = inputs.narrow(0, rows, rows), before = positions.clone();
        const kernels::GreedyChain chain{
            .ids = inputs.narrow(0, 0, rows),
            .positions = positions,
            .found = torch::full({turns, rows, 3}, -1, torch::TensorOptions().dtype(at::kDouble).device(device)),
            .turn = inputs.narrow(0, 2 * rows, 1).fill_(0)};
        for (int64_t step = 0; step < 5; ++step) {
          const auto logits = (torch::randn({rows, words}) * 4).to(dtype).to(device);
          const auto [ids, found] = kernels::greedy_tokens(logits, logits);
          auto places = chain.found.clone();
          places[step % turns].copy_(found);
          kernels::greedy_advance(logits, chain);
          EXPECT_TRUE(chain.ids.equal(ids)) << step;
          EXPECT_TRUE(chain.found.equal(places)) << step;
          EXPECT_TRUE(positions.equal(before + (step + 1))) << step;
          EXPECT_EQ(chain.turn.item<int64_t>(), (step + 1) % turns);
        }
      }
}

}  // namespace levin::greedy_tests
