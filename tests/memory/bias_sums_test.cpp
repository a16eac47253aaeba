// Which layers take the gradients of their biases from the kernel behind them, by the operators of a training step; and
// whose operator the gradient of embeddings is.
#include <map>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/memory/estimate.h"
#include "levin/models/decoder.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/testing/operator_counts.h"
#include "levin/testing/scoped_variable.h"

namespace levin::bias_sums_tests {
namespace {

/// Operators of a step, as an estimate of memory runs it: on meta tensors that stand for a GPU.
template <class Estimate>
std::map<std::string, int> operators_of(const char* sums, const Estimate& estimate) {
  const testing::ScopedVariable wanted("LEVIN_BIAS_SUMS", sums);
  const testing::OperatorCounts counted;
  estimate();
  return counted.all();
}

std::map<std::string, int> operators_of_a_vit(const char* sums, const std::string& precision) {
  return operators_of(sums, [&] {
    estimate_memory(
        [] {
          return models::vit({.image_size = 224,
                              .patch_size = 16,
                              .num_layers = 3,
                              .num_heads = 2,
                              .hidden_dim = 128,
                              .mlp_dim = 256,
                              .num_classes = 8});
        },
        [](auto& model, const Batch& batch) { return model(batch["x"]); },
        [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["y"]); },
        Batch{{"x", torch::zeros({2, 3, 224, 224}, at::kMeta)},
              {"y", torch::zeros({2}, torch::dtype(at::kLong).device(at::kMeta))}},
        {.precision = precision, .device = at::kCUDA});
  });
}

std::map<std::string, int> operators_of_a_gpt(const char* sums, const std::string& precision,
                                              const std::string& positions) {
  const auto ids = torch::zeros({2, 64}, torch::dtype(at::kLong).device(at::kMeta));
  return operators_of(sums, [&] {
    estimate_memory(
        [&] {
          return models::decoder({.vocab_size = 96,
                                  .max_positions = 64,
                                  .num_layers = 3,
                                  .num_heads = 2,
                                  .hidden_dim = 128,
                                  .positions = positions});
        },
        [](auto& model, const Batch& batch) { return model(batch["x"]); },
        [](const Tensor& logits, const Batch& batch) {
          return cross_entropy(logits.flatten(0, 1), batch["y"].flatten());
        },
        Batch{{"x", ids}, {"y", ids}}, {.precision = precision, .device = at::kCUDA});
  });
}

TEST(BiasSums, OfAVitComeFromNormsAttentionAndTokens) {
  for (const auto* precision : {"bf16-true", "bf16-mixed"}) {
    auto plain = operators_of_a_vit("0", precision), known = operators_of_a_vit("1", precision);
    const auto blocks = plain["levin::activation"], attentions = plain["levin::short_attention_backward"];
    ASSERT_GT(blocks, 0);
    ASSERT_GT(attentions, 0);  // the last block needs the first token alone
    const auto tokens = plain["levin::prepend_token_backward"];
    ASSERT_GT(tokens, 0);
    // The layers before the two norms of a block, those before attention, and the patches.
    const auto taken = 2 * blocks + attentions + tokens;
    EXPECT_EQ(plain["levin::matmul_and_sums"] - known["levin::matmul_and_sums"], taken) << precision;
    EXPECT_EQ(known["levin::matmul"] - plain["levin::matmul"], taken) << precision;
  }
}

TEST(BiasSums, OfAGptComeFromPackingTheGradientsOfAttention) {
  for (const auto* precision : {"bf16-true", "bf16-mixed"}) {
    auto plain = operators_of_a_gpt("0", precision, "learned"), known = operators_of_a_gpt("1", precision, "learned");
    const auto blocks = plain["levin::pack_qkv"];
    ASSERT_GT(blocks, 0);
    EXPECT_EQ(known["levin::pack_qkv"], 0) << precision;
    EXPECT_EQ(known["levin::pack_qkv_and_sums"], blocks) << precision;
    // The layers before the two norms behind a block's branches, and the one before attention.
    EXPECT_EQ(plain["levin::matmul_and_sums"], 3 * blocks) << precision;
    EXPECT_EQ(known["levin::matmul_and_sums"], 0) << precision;
  }
}

/// Rotary positions turn the packed gradient once more: its sums would be of no use.
TEST(BiasSums, OfRotaryPositionsAreNotAddedUpForNobody) {
  auto known = operators_of_a_gpt("1", "bf16-true", "rotary");
  const auto blocks = known["levin::pack_qkv"];
  ASSERT_GT(blocks, 0);
  EXPECT_EQ(known["levin::pack_qkv_and_sums"], 0);
  EXPECT_EQ(known["levin::matmul_and_sums"], blocks) << "of the layers before attention";
}

TEST(Tokens, OfAVitAreLevinsOnAGpu) {
  for (const auto* precision : {"bf16-true", "bf16-mixed", "32-true"}) {
    auto found = operators_of_a_vit("1", precision);
    EXPECT_GT(found["levin::prepend_token"], 0) << precision;
    EXPECT_EQ(found["levin::prepend_token_backward"], found["levin::prepend_token"]) << precision;
  }
}

TEST(EmbeddingGradients, OfAGptAreLevinsOnAGpu) {
  auto found = operators_of_a_gpt("1", "bf16-mixed", "learned");
  EXPECT_GT(found["levin::embedding_backward"], 0);
  EXPECT_EQ(found["aten::embedding_dense_backward"], 0);
}

}  // namespace
}  // namespace levin::bias_sums_tests
