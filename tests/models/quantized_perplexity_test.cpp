// What each quantization costs a small model that has learned something.
#include <cmath>
#include <map>

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/models/folder.h"
#include "levin/models/language_score.h"
#include "levin/optim/adam.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::models_tests {
namespace {

constexpr const char* kConfig = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 128,
  "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2, "activation_function": "gelu_new", "resid_pdrop": 0.0,
  "embd_pdrop": 0.0, "attn_pdrop": 0.0, "layer_norm_epsilon": 1e-5})";

constexpr int64_t kLength = 32;

/// The characters of a text: sentences of a few words in every order.
at::Tensor rows_of_text() {
  const auto text = read_file(testing::source_dir() + "/tests/launch/fixtures/gpt_text/text.txt");
  std::vector<int64_t> ids;
  for (const auto c : text) ids.push_back(std::clamp<int64_t>(c, 0, 127));
  ids.resize(ids.size() / kLength * kLength);
  return at::tensor(ids, at::kLong).view({-1, kLength});
}

TEST(QuantizedPerplexity, StaysWithinItsBound) {
  torch::manual_seed(3);
  auto model = models::new_model(kConfig);
  const auto rows = rows_of_text();
  const auto held = rows.size(0) / 4, count = rows.size(0) - held;
  model.decoder->train();
  optim::AdamW opt(model.decoder->parameters(), {.lr = 3e-3});
  for (int64_t step = 0; step < 90; ++step) {
    const auto batch = rows.index_select(0, at::randint(count, {8}, at::kLong));
    opt.zero_grad();
    model.decoder(batch, models::next_tokens(batch)).backward();
    opt.step();
  }
  model.decoder->eval();
  std::vector<std::vector<int64_t>> texts;
  for (int64_t i = count; i < rows.size(0); ++i) {
    const auto* first = rows.const_data_ptr<int64_t>() + i * kLength;
    texts.emplace_back(first, first + kLength);
  }
  const testing::TemporaryFolder folder;
  models::save_model(model, folder / "model");
  const auto perplexity = [&](const std::string& word) {
    const auto opened = models::open_model(folder / "model", {.quantize = word});
    double sum = 0, tokens = 0;
    for (const auto& row : models::score_rows(opened, texts))
      for (const auto logprob : row.logprobs) sum -= logprob, ++tokens;
    return std::exp(sum / tokens);
  };
  const auto plain = perplexity("");
  EXPECT_LT(plain, 2.5);  // of 128 characters: it has learned
  const std::map<std::string, double> bounds{{"int8", 1.01}, {"int8-weights", 1.01}, {"fp8", 1.02},
                                             {"nf4", 1.05},  {"nf4-double", 1.05},   {"int4:64", 1.05}};
  for (const auto& [word, bound] : bounds) {
    const auto share = perplexity(word) / plain;
    EXPECT_LT(share, bound) << word;
    EXPECT_GT(share, 0.95) << word;
  }
}

}  // namespace
}  // namespace levin::models_tests
