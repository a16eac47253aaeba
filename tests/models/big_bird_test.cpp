// BigBird's attention by blocks in training against transformers.
#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/io/weights/safetensors.h"
#include "levin/models/block_attention.h"
#include "levin/models/folder.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/policy.h"
#include "levin/nn/tie.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin::big_bird_tests {
namespace {

namespace fs = std::filesystem;
using models::LanguageModel;
using models::open_model;
using ::testing::HasSubstr;

const fs::path kBirds = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/big_bird";

double largest(const Tensor& difference) {
  return difference.abs().max().item<double>();
}

/// A gradient as the script writes it.
Tensor projected(const Tensor& grad) {
  return grad.dim() < 2 ? grad : at::matmul(grad, at::cos(at::arange(grad.size(1), grad.options())));
}

Tensor head_of(LanguageModel& model, const WeightFile& file) {
  return model.encoder(file.read("ids"), file.read("mask"));
}

void backward_of(const Tensor& head, const WeightFile& file) {
  const auto real = head.dim() == 3 ? file.read("mask").unsqueeze(2) : at::ones({1});
  (head.to(at::kFloat) * real * at::cos(at::arange(head.numel(), at::kFloat)).view_as(head)).sum().backward();
}

size_t compare_gradients(const LanguageModel& model, const WeightFile& file, double tolerance) {
  const auto& architecture = models::architecture_of(model.config);
  const auto& body = model.body();
  const models::detail::QkvRows rows{body.hidden_dim, body.hidden_dim, body.hidden_dim};
  size_t compared = 0;
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    if (!parameter.grad().defined()) continue;
    const auto theirs = models::detail::their_weight(architecture, name);
    const auto parts = models::detail::weights_for_file(parameter.grad().to(at::kFloat), *theirs, rows, body.num_heads);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string key;
      for (const auto& each : {std::string(architecture.prefix) + theirs->names[i], theirs->names[i], theirs->also})
        if (file.contains("grad." + each)) key = "grad." + each;
      EXPECT_FALSE(key.empty()) << name;
      if (key.empty()) continue;
      const auto expected = file.read(key);
      EXPECT_LT(largest(projected(parts[i]) - expected), tolerance * std::max(1.0, largest(expected))) << key;
      ++compared;
    }
  }
  return compared;
}

TEST(BigBirdTraining, RandomBlocksAreThoseOfTransformers) {
  const auto plans = nlohmann::json::parse(std::ifstream(kBirds / "plans.json"));
  ASSERT_EQ(plans.size(), 10U);
  for (const auto& plan : plans) {
    const models::BlockAttentionOptions options{.block_size = plan["block_size"],
                                                .random_blocks = plan["random_blocks"],
                                                .num_heads = plan["heads"],
                                                .max_positions = plan["positions"],
                                                .layer = plan["layer"]};
    EXPECT_EQ(nlohmann::json(models::random_blocks_of(options, plan["tokens"])), plan["blocks"]) << options.layer;
  }
  EXPECT_THAT(testing::error_of([] { models::random_blocks_of({.block_size = 256}, 4096); }),
              HasSubstr("too few for 3 random ones"));
}

TEST(BigBirdTraining, GradientsAreThoseOfTransformers) {
  for (const char* name : {"masked", "sequence"})
    for (const bool checkpointed : {false, true}) {
      SCOPED_TRACE(std::string(name) + (checkpointed ? ", checkpointed" : ""));
      auto model = open_model(kBirds / name);
      model.encoder->train();
      if (checkpointed) checkpoint_activations(model.encoder, policy::by_class<models::DecoderBlock>());
      const WeightFile file(kBirds / name / "outputs.st");
      const auto head = head_of(model, file);
      EXPECT_LT(largest(head - file.read("head")), 1e-5 * std::max(1.0, largest(head)));
      backward_of(head, file);
      EXPECT_EQ(compare_gradients(model, file, 1e-5), file.entries().size() - 3);
    }
}

TEST(BigBirdTraining, Bfloat16IsNear) {
  const WeightFile file(kBirds / "masked/outputs.st");
  auto exact = open_model(kBirds / "masked"), narrow = open_model(kBirds / "masked", {.dtype = at::kBFloat16});
  exact.encoder->train(), narrow.encoder->train();
  backward_of(head_of(exact, file), file);
  backward_of(head_of(narrow, file), file);
  const auto expected = exact.module().named_parameters();
  for (const auto& item : narrow.module().named_parameters()) {
    if (!item.value().grad().defined()) continue;
    const auto grad = expected[item.key()].grad();
    EXPECT_LT((item.value().grad().to(at::kFloat) - grad).norm().item<double>(), 0.1 * grad.norm().item<double>())
        << item.key();
  }
}

TEST(BigBirdTraining, EvaluationSeesOtherBlocks) {
  const at::NoGradGuard no_grad;
  auto model = open_model(kBirds / "masked");
  const WeightFile file(kBirds / "masked/outputs.st");
  EXPECT_GT(largest(head_of(model, file) - file.read("head")), 1e-3);
}

}  // namespace
}  // namespace levin::big_bird_tests
