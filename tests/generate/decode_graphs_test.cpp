// Decode steps as graphs, greedy ones above all: the tokens and positions that a replay leaves are those of the next.
#include "levin/generate/decode_graphs.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/generate/decode_batch.h"
#include "tests/generate/played_graphs.h"

namespace levin::generate_tests {
namespace {

using detail::DecodeBatch;
using Ids = std::vector<int64_t>;

models::Decoder small_model() {
  torch::manual_seed(3);
  auto model = models::decoder({.vocab_size = 61,
                                .max_positions = 400,
                                .num_layers = 2,
                                .num_heads = 4,
                                .hidden_dim = 32,
                                .norm = "rms",
                                .activation = "silu_gated",
                                .positions = "rotary",
                                .tied_head = false,
                                .kv_heads = 2});
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters())
    if (parameter.dim() > 1) parameter.mul_(4);
  model->eval();
  return model;
}

/// A batch whose steps are graphs, and one whose steps are not, with the same rows.
class DecodeGraphsTest : public ::testing::Test {
 protected:
  void start(const std::vector<Ids>& prompts) {
    std::vector<const Ids*> all;
    for (const auto& prompt : prompts) all.push_back(&prompt);
    ids = plain.append(all).argmax(1);
    EXPECT_TRUE(graphs.append(all).argmax(1).equal(ids));
    next = ids;
  }

  /// A greedy step of both behind `next`, and from then on behind what they find.
  void step() {
    const auto [logits, tokens] = graphs.decode_greedy(next);
    const auto expected = plain.decode(ids);
    ids = expected.argmax(1);
    EXPECT_TRUE(at::allclose(logits, expected, 1e-4, 1e-4));
    ASSERT_TRUE(tokens.ids.equal(ids)) << tokens.ids << ids;
    EXPECT_TRUE(tokens.found.select(1, 0).equal(ids.to(at::kDouble)));
    const auto logs = expected.log_softmax(1).gather(1, ids.unsqueeze(1)).squeeze(1).to(at::kDouble);
    EXPECT_TRUE(at::allclose(tokens.found.select(1, 1), logs, 1e-4, 1e-4));
    // The host may still read what the step before has found.
    if (last.defined()) {
      EXPECT_TRUE(last.equal(last_copy));
    }
    last = tokens.found, last_copy = last.clone();
    next = tokens.ids;
  }
  void steps(int count) {
    for (int i = 0; i < count && !HasFatalFailure(); ++i) step();
  }

  at::NoGradGuard no_grad;
  models::Decoder model = small_model();
  std::shared_ptr<PlayedGraphs> device = std::make_shared<PlayedGraphs>();
  DecodeBatch graphs{model, {.rows = 5, .capacity = 330, .graph_device = device}},
      plain{model, {.rows = 5, .capacity = 330}};
  at::Tensor ids, next, last, last_copy;
};

TEST_F(DecodeGraphsTest, GreedyStepsAreReplaysAndNothingElse) {
  start({{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17, 8, 1, 44, 23}, {13}});  // and a row that nobody has
  steps(245);
  EXPECT_EQ(device->uploads, 1);
  steps(55);  // more than 256 slots: another graph
  EXPECT_EQ(device->uploads, 2);
  EXPECT_EQ(device->replays, 300);
}

TEST_F(DecodeGraphsTest, OneRow) {
  start({{7, 3, 11, 42, 5}});
  steps(300);
  EXPECT_EQ(device->uploads, 2);
}

// Also where the last step has left the tokens in their place.
TEST_F(DecodeGraphsTest, OtherPositionsAreUploaded) {
  start({{7, 3, 11, 42, 5}, {9, 30, 2}});
  steps(4);
  EXPECT_EQ(device->uploads, 1);
  for (auto* batch : {&graphs, &plain}) batch->truncate(1, 4);
  steps(3);
  EXPECT_EQ(device->uploads, 2);
}

TEST_F(DecodeGraphsTest, OtherTokensAreUploaded) {
  start({{7, 3, 11, 42, 5}, {9, 30, 2}});
  steps(4);
  next = ids = at::tensor({8, 9}, at::kLong);
  steps(3);
  EXPECT_EQ(device->uploads, 2);
  next = next.clone();
  steps(3);
  EXPECT_EQ(device->uploads, 3);
}

TEST_F(DecodeGraphsTest, RowsComeAndGo) {
  start({{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17}, {13}, {4, 4}});
  steps(4);
  // The last row takes the place of the second; four rows have the graph of three.
  for (auto* batch : {&graphs, &plain}) batch->remove(1);
  const auto kept = at::tensor({0, 3, 2}, at::kLong);
  next = next.index_select(0, kept), ids = ids.index_select(0, kept);
  steps(6);
  EXPECT_EQ(device->uploads, 2);
  const Ids fresh{20, 21, 22};
  const auto* prompt = &fresh;
  const auto first = plain.append({&prompt, 1}).argmax(1);
  graphs.append({&prompt, 1});
  next = at::cat({next, first}), ids = at::cat({ids, first});
  steps(6);
  EXPECT_EQ(device->uploads, 3);
  const Ids swapped{1, 0, 2, 3};
  for (auto* batch : {&graphs, &plain}) batch->select(swapped);
  next = next.index_select(0, at::tensor(swapped)), ids = ids.index_select(0, at::tensor(swapped));
  steps(6);
  EXPECT_EQ(device->uploads, 4);
}

TEST_F(DecodeGraphsTest, StepsThatAreNotGreedyComeBetween) {
  start({{7, 3, 11, 42, 5}, {9, 30, 2}, {1}});
  steps(3);
  for (int i = 0; i < 2; ++i) {
    const auto logits = graphs.decode(next);
    ids = plain.decode(ids).argmax(1);
    next = logits.argmax(1);
    EXPECT_TRUE(next.equal(ids));
  }
  steps(3);
  const Ids tokens{5, 6, 7};
  next = ids = plain.decode(tokens).argmax(1);
  EXPECT_TRUE(graphs.decode(tokens).argmax(1).equal(ids));
  steps(3);
  EXPECT_EQ(device->uploads, 1 + 2 + 1 + 1 + 1);
}

TEST_F(DecodeGraphsTest, WithoutACaptureStepsAreTheSame) {
  device->refuses = true;
  start({{7, 3, 11, 42, 5}, {9, 30, 2}, {1}});
  steps(20);
  EXPECT_EQ(device->uploads, 20);
  EXPECT_EQ(device->replays, 0);
}

// The slots grow, and the step of their new size cannot be captured.
TEST_F(DecodeGraphsTest, ALaterCaptureIsRefused) {
  start({{7, 3, 11, 42, 5}, {9, 30, 2}, {1}});
  steps(250);
  device->refuses = true;
  steps(20);
  EXPECT_EQ(device->replays, 251);
}

}  // namespace
}  // namespace levin::generate_tests
