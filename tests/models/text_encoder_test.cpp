// What encoders of text do in training: dropout where the originals have it, and the last block of a classifier.
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/memory_counter.h"
#include "levin/models/decoder_positions.h"
#include "levin/models/folder.h"
#include "levin/models/text_encoder_sizes.h"
#include "levin/precision/precision.h"
#include "levin/testing/paths.h"
#include "levin/testing/tensors.h"

namespace levin::models {
namespace {

using testing::max_difference;

/// The fraction of hidden numbers that do not reach the classes of tokens.
double dropped(const std::string& folder, double body, double classifier) {
  auto model = open_model_meta(std::filesystem::path(testing::source_dir()) / "tests/models/fixtures/language" / folder,
                               {.head = "none"});
  auto options = model.encoder->options;
  options.head = "token_classification";
  options.body.dropout = body;
  options.classifier_dropout = classifier;
  // Each class is one hidden number.
  options.num_labels = options.body.hidden_dim;
  torch::manual_seed(1);
  TextEncoder encoder(options);
  encoder->train();
  const torch::NoGradGuard no_grad;
  encoder->token_classifier->weight.copy_(torch::eye(options.num_labels));
  encoder->token_classifier->bias.zero_();
  const auto classes = encoder->head_output(torch::ones({64, 64, options.body.hidden_dim}));
  return classes.eq(0).to(torch::kDouble).mean().item<double>();
}

// transformers: DistilBertForTokenClassification has config.dropout, BertForTokenClassification classifier_dropout.
TEST(TextEncoderDropout, TokensOfDistilBertHaveThatOfTheBody) {
  EXPECT_NEAR(dropped("distilbert_masked", 0.1, 0.4), 0.1, 0.02);
  EXPECT_NEAR(dropped("bert_masked", 0.1, 0.4), 0.4, 0.02);
}

// TransformerBlock of DistilBERT drops what its MLP gives, BertSelfOutput what attention gives too.
TEST(TextEncoderDropout, OfDistilBertIsBehindTheMlpOnly) {
  for (const auto& [name, drops] : {std::pair("distilbert", false), std::pair("bert_base", true)}) {
    auto body = text_encoder_options(name).body;
    body.hidden_dim = 32, body.num_heads = 2, body.mlp_dim = 64, body.dropout = 0.5, body.attention_dropout = 0;
    torch::manual_seed(2);
    DecoderBlock block(body);
    const torch::NoGradGuard no_grad;
    for (auto* layer : {&block->mlp->down, &block->mlp->up}) (*layer)->weight.zero_();
    const auto x = torch::randn({2, 5, 32});
    block->train();
    const auto trained = block(x);
    block->eval();
    EXPECT_EQ(max_difference(trained, block(x)) > 1e-3, drops) << name;
  }
}

struct FirstToken {
  Tensor value;
  std::vector<Tensor> gradients;
};

/// What `run` gives, and the gradients of its weighted sum by the parameters of the module and by x.
FirstToken first_token_of(torch::nn::Module& module, const std::function<Tensor()>& run, const Tensor& x = {}) {
  module.zero_grad();
  if (x.defined()) x.mutable_grad().reset();
  FirstToken result{run(), {}};
  const auto weights = torch::arange(result.value.numel(), torch::kDouble).sin().view(result.value.sizes());
  (result.value * weights).sum().backward();
  result.value = result.value.detach();
  for (const auto& parameter : module.parameters())
    result.gradients.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::zeros_like(parameter));
  if (x.defined()) result.gradients.push_back(x.grad().clone());
  return result;
}

DecoderOptions small_body() {
  DecoderOptions options;
  options.vocab_size = 40, options.max_positions = 16, options.num_layers = 2, options.num_heads = 4;
  options.hidden_dim = 32;
  return options;
}

void expect_same_block(DecoderOptions options, const std::string& what) {
  torch::manual_seed(3);
  DecoderBlock block(options);
  block->to(torch::kDouble);
  const auto x = torch::randn({3, 7, 32}, torch::kDouble).set_requires_grad(true);
  auto mask = torch::ones({3, 7}, torch::kLong);
  mask.slice(0, 1).slice(1, 5) = 0;
  for (const auto& padding : {Tensor(), mask}) {
    const auto rotary =
        options.positions == "rotary" ? rotary_angles(options, 7, padding, torch::kCPU).to(torch::kDouble) : Tensor();
    const auto added = attention_masks(options, 7, padding, x).full;
    const auto first = first_token_of(
        *block, [&] { return block(x, rotary, added, true); }, x);
    const auto all = first_token_of(
        *block, [&] { return block(x, rotary, added).narrow(1, 0, 1); }, x);
    EXPECT_EQ(first.value.sizes(), (std::vector<int64_t>{3, 1, 32})) << what;
    EXPECT_LT(max_difference(first.value, all.value), 1e-12) << what;
    EXPECT_LT(max_difference(first.gradients, all.gradients), 1e-12) << what;
  }
}

TEST(FirstToken, OfABlockUnderAutocastIsThatOfAll) {
  auto options = small_body();
  options.positions = "alibi";
  torch::manual_seed(4);
  DecoderBlock block(options);
  const at::NoGradGuard no_grad;
  const auto x = torch::randn({3, 7, 32});
  const auto added = attention_masks(options, 7, {}, x).full;
  ASSERT_EQ(added.scalar_type(), at::kFloat);
  const Autocast autocast(at::kCPU, at::kBFloat16);
  const auto all = block(x, Tensor(), added).narrow(1, 0, 1);
  EXPECT_LT(max_difference(block(x, Tensor(), added, true).to(at::kFloat), all.to(at::kFloat)), 0.05);
}

TEST(FirstToken, OfABlockIsThatOfAll) {
  for (const char* order : {"pre", "post", "parallel", "residual", "sandwich"})
    for (const bool causal : {false, true}) {
      auto options = small_body();
      options.block = order, options.causal = causal;
      expect_same_block(options, order);
    }
  auto options = small_body();
  options.positions = "rotary", options.kv_heads = 2, options.norm = "rms", options.activation = "silu_gated";
  options.qk_norm = true;
  expect_same_block(options, "rotary, groups of heads, norms of queries and keys");
  options.qk_norm = false, options.attention_softcap = 5;
  expect_same_block(options, "softcap");
  options.causal = false;
  expect_same_block(options, "softcap, both ways");
  auto slopes = small_body();
  slopes.positions = "alibi";
  expect_same_block(slopes, "alibi");
}

TextEncoder small_classifier(const std::function<void(TextEncoderOptions&)>& change = {}) {
  TextEncoderOptions options{.body = encoder_body(small_body())};
  options.head = "sequence_classification", options.classifier = "relu", options.num_labels = 3;
  if (change) change(options);
  torch::manual_seed(5);
  TextEncoder encoder(options);
  encoder->to(torch::kDouble);
  return encoder;
}

TEST(FirstToken, OfAClassifierIsThatOfAll) {
  const auto blocks_of_tokens = [](TextEncoderOptions& options) {
    options.block_size = 1, options.random_blocks = 1, options.body.max_positions = 32;
  };
  const auto with_pooler = [](TextEncoderOptions& options) { options.classifier = "pooler", options.pooler = true; };
  for (const auto& change : std::vector<std::function<void(TextEncoderOptions&)>>{{}, with_pooler, blocks_of_tokens}) {
    auto encoder = small_classifier(change);
    const auto ids = torch::randint(40, {4, 11}, torch::kLong);
    auto mask = torch::ones({4, 11}, torch::kLong);
    mask.slice(0, 2).slice(1, 8) = 0;
    for (const auto& padding : {Tensor(), mask}) {
      const auto first = first_token_of(*encoder, [&] { return encoder(ids, padding); });
      const auto all =
          first_token_of(*encoder, [&] { return encoder->head_output(encoder->hidden_states(ids, padding)); });
      EXPECT_LT(max_difference(first.value, all.value), 1e-12);
      EXPECT_LT(max_difference(first.gradients, all.gradients), 1e-12);
      EXPECT_EQ(encoder->first_states(ids, padding).sizes(), (std::vector<int64_t>{4, 1, 32}));
    }
  }
}

TEST(FirstToken, OfAClassifierTakesLessMemory) {
  // The MLP of the last block is not kept for backward but for one token: [8, 16, 128] numbers less, at least.
  auto encoder = small_classifier();
  const auto ids = torch::randint(40, {8, 16}, torch::kLong);
  const auto saved = [&](const std::function<Tensor()>& run) {
    MemoryCounter counter;
    const auto before = counter.allocated();
    const auto value = run();
    return counter.allocated() - before;
  };
  const auto first = saved([&] { return encoder(ids); });
  const auto all = saved([&] { return encoder->head_output(encoder->hidden_states(ids)); });
  EXPECT_LT(first + int64_t{7 * 16 * 128 * 8}, all);
}

}  // namespace
}  // namespace levin::models
