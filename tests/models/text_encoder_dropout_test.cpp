// Dropout before the classes of an encoder.
#include <filesystem>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/models/folder.h"
#include "levin/testing/paths.h"

namespace levin::models {
namespace {

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

}  // namespace
}  // namespace levin::models
