#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/models/decoder_positions.h"
#include "levin/models/folder.h"
#include "levin/models/language/weight_plan.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/policy.h"
#include "levin/nn/tie.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::language_tests {
namespace {

namespace fs = std::filesystem;
using models::LanguageModel;
using models::open_model;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

double largest(const Tensor& difference) {
  return difference.numel() == 0 ? 0.0 : difference.abs().max().item<double>();
}

void expect_close(const Tensor& found, const Tensor& expected, double tolerance, const std::string& what = "") {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_LT(largest(found.to(at::kFloat) - expected.to(at::kFloat)), tolerance) << what;
}

/// A gradient as the script writes it.
Tensor projected(const Tensor& grad) {
  return grad.dim() < 2 ? grad : at::matmul(grad, at::cos(at::arange(grad.size(1), grad.options())));
}

models::detail::QkvRows rows_of(const models::DecoderOptions& o) {
  return {o.num_heads * o.head_width(), o.key_heads() * o.head_width(), o.key_heads() * o.head_width()};
}

/// Compares the gradients of all parameters with those of a file, and says how many there were.
size_t compare_gradients(const LanguageModel& model, const WeightFile& file) {
  const auto& architecture = models::architecture_of(model.config);
  size_t compared = 0;
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    const auto theirs = models::detail::their_weight(architecture, name, parameter.sizes());
    if (!parameter.grad().defined()) continue;
    const auto parts =
        models::detail::weights_for_file(parameter.grad(), *theirs, rows_of(model.body()), model.body().num_heads);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string key;
      for (const auto& each : {std::string(architecture.prefix) + theirs->names[i], theirs->names[i], theirs->also})
        if (file.contains("grad." + each)) key = "grad." + each;
      EXPECT_FALSE(key.empty()) << name;
      if (key.empty()) continue;
      const auto expected = file.read(key);
      expect_close(projected(parts[i]), expected, 1e-5 * std::max(1.0, largest(expected)), key);
      ++compared;
    }
  }
  return compared;
}

class Language : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path folder() const { return kFolders / GetParam(); }
  WeightFile outputs() const { return WeightFile(folder() / "outputs.st"); }
};

TEST_P(Language, EqualsTransformers) {
  auto model = open_model(folder());
  EXPECT_EQ(model.dtype, at::kFloat);
  EXPECT_FALSE(model.decoder->is_training());
  const auto file = outputs();
  const auto ids = file.read("ids");
  expect_close(model.decoder(ids), file.read("logits"), 1e-5);

  const auto loss = model.decoder(ids, models::next_tokens(ids));
  expect_close(loss.reshape(1), file.read("loss"), 1e-5);
  loss.backward();
  EXPECT_EQ(compare_gradients(model, file), file.entries().size() - 3);
}

TEST_P(Language, PaddedRowsEqualSingleRows) {
  const at::NoGradGuard no_grad;
  auto model = open_model(folder());
  const auto all = outputs().read("ids");
  const auto length = all.size(1);
  const std::vector<int64_t> lengths{length, length - 5, 3};
  for (const bool left : {true, false}) {
    SCOPED_TRACE(left ? "left" : "right");
    const auto n = static_cast<int64_t>(lengths.size());
    auto ids = at::zeros({n, length}, at::kLong), mask = at::zeros({n, length}, at::kLong);
    std::vector<Tensor> single;
    for (int64_t i = 0; i < n; ++i) {
      const auto own = lengths[static_cast<size_t>(i)];
      const auto row = all[i % 2].slice(0, 0, own);
      const auto begin = left ? length - own : 0;
      ids[i].slice(0, begin, begin + own).copy_(row);
      mask[i].slice(0, begin, begin + own).fill_(1);
      single.push_back(model.decoder(row.unsqueeze(0))[0]);
    }
    const auto batch = model.decoder(ids, Tensor(), mask);
    EXPECT_TRUE(batch.isfinite().all().item<bool>());
    for (int64_t i = 0; i < n; ++i) {
      const auto own = lengths[static_cast<size_t>(i)], begin = left ? length - own : 0;
      expect_close(batch[i].slice(0, begin, begin + own), single[static_cast<size_t>(i)], 1e-5);
    }
    expect_close(model.decoder(ids, Tensor(), mask.to(at::kBool)), batch, 1e-7);
  }
}

TEST_P(Language, Bfloat16IsNear) {
  const at::NoGradGuard no_grad;
  auto model = open_model(folder(), {.dtype = at::kBFloat16});
  EXPECT_EQ(model.dtype, at::kBFloat16);
  for (const auto& parameter : model.module().parameters()) EXPECT_EQ(parameter.scalar_type(), at::kBFloat16);
  const auto expected = outputs().read("logits");
  const auto logits = model.decoder(outputs().read("ids"));
  EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
  const auto difference = (logits.to(at::kFloat) - expected).norm().item<double>();
  EXPECT_LT(difference, 0.05 * expected.norm().item<double>());
  EXPECT_GT(difference, 0);
}

TEST_P(Language, SavedFolderIsTheSame) {
  const testing::TemporaryFolder temporary;
  auto model = open_model(folder());
  models::save_model(model, temporary / "whole");
  models::save_model(model, temporary / "cut", {.max_shard_size = 5000});
  EXPECT_TRUE(fs::exists(temporary / "cut/model.safetensors.index.json"));
  const auto ids = outputs().read("ids");
  const auto expected = model.decoder(ids);
  for (const char* name : {"whole", "cut"}) {
    auto again = open_model(temporary / name);
    EXPECT_TRUE(again.decoder(ids).equal(expected));
    EXPECT_EQ(again.decoder->options.tied_head, model.decoder->options.tied_head);
  }
  EXPECT_THAT(error_of([&] { models::save_model(model, temporary / "whole"); }), HasSubstr("overwrite"));
}

TEST_P(Language, CheckpointedBlocksGiveTheSameGradients) {
  auto model = open_model(folder());
  model.decoder->train();
  const auto ids = outputs().read("ids");
  auto mask = at::ones_like(ids);
  mask[0].slice(0, 0, 4).zero_();
  const auto run = [&] {
    at::manual_seed(3);
    model.module().zero_grad();
    model.decoder(ids, models::next_tokens(ids), mask).backward();
    std::vector<Tensor> gradients;
    for (const auto& parameter : unique_parameters(model.module())) gradients.push_back(parameter.grad().clone());
    return gradients;
  };
  const auto expected = run();
  const auto checkpoints = attach_checkpointing(model.module(), policy::by_class<models::DecoderBlock>());
  const auto found = run();
  for (size_t i = 0; i < found.size(); ++i) EXPECT_LT(largest(found[i] - expected[i]), 1e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(Folders, Language,
                         ::testing::Values("gpt2", "gpt2_by_layer", "gpt2_bin", "llama", "llama_biases", "llama_rope3",
                                           "llama_linear", "llama_dynamic", "llama_yarn", "mistral", "qwen2", "qwen3",
                                           "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "gemma", "gemma2", "bloom",
                                           "bloom_residual", "opt", "opt_post", "opt_wide", "galactica", "gpt_neox",
                                           "gpt_neox_sequential", "gpt_neox_odd"),
                         [](const auto& each) { return each.param; });

// ---- encoders

class LanguageEncoder : public Language {};

TEST_P(LanguageEncoder, EqualsTransformers) {
  auto model = open_model(folder());
  ASSERT_TRUE(model.encoder);
  const auto file = outputs();
  const auto ids = file.read("ids"), mask = file.read("mask");
  const auto types = file.contains("types") ? file.read("types") : Tensor();
  const auto hidden = model.encoder->hidden_states(ids, mask, types);
  const auto real = mask.unsqueeze(2).to(at::kFloat);
  expect_close(hidden * real, file.read("hidden") * real, 1e-5);
  const auto head =
      model.encoder->options.head == "none" ? model.encoder->pooled(hidden) : model.encoder(ids, mask, types);
  const auto counted = head.dim() == 3 ? real : at::ones({1});
  expect_close(head * counted, file.read("head") * counted, 1e-5);
  size_t gradients = 0;
  for (const auto& entry : file.entries()) gradients += entry.name.starts_with("grad.");
  if (gradients == 0) return;
  (head * counted * at::cos(at::arange(head.numel(), at::kFloat)).view_as(head)).sum().backward();
  EXPECT_EQ(compare_gradients(model, file), gradients);
}

TEST_P(LanguageEncoder, PaddedRowsEqualSingleRows) {
  const at::NoGradGuard no_grad;
  auto model = open_model(folder());
  const auto file = outputs();
  const auto ids = file.read("ids"), mask = file.read("mask");
  const auto batch = model.encoder->hidden_states(ids, mask);
  EXPECT_TRUE(batch.isfinite().all().item<bool>());
  if (GetParam() == "big_bird") return;  // its last block, which all see, depends on the padding
  const auto own = mask[1].sum().item<int64_t>();
  expect_close(batch[1].slice(0, 0, own), model.encoder->hidden_states(ids.slice(0, 1).slice(1, 0, own))[0], 2e-5);
  EXPECT_TRUE(model.encoder->hidden_states(ids, at::zeros_like(mask)).isfinite().all().item<bool>());
}

TEST_P(LanguageEncoder, SavedFolderIsTheSame) {
  const testing::TemporaryFolder temporary;
  auto model = open_model(folder());
  models::save_model(model, temporary / "saved");
  auto again = open_model(temporary / "saved");
  const auto ids = outputs().read("ids");
  EXPECT_TRUE(again.encoder(ids).equal(model.encoder(ids)));
}

INSTANTIATE_TEST_SUITE_P(Folders, LanguageEncoder,
                         ::testing::Values("bert", "bert_masked", "bert_sequence", "bert_token", "distilbert_masked",
                                           "distilbert_sequence", "roberta_masked", "roberta_sequence", "big_bird",
                                           "big_bird_sequence"),
                         [](const auto& each) { return each.param; });

TEST(LanguageEncoderHead, AnotherHeadThanTheFileHas) {
  auto model = open_model(kFolders / "bert_masked", {.head = "none"});
  const auto ids = at::randint(2, 50, {2, 5});
  const auto hidden = model.encoder(ids);
  EXPECT_EQ(hidden.sizes(), (std::vector<int64_t>{2, 5, 12}));
  EXPECT_FALSE(model.encoder->pooler);
  auto mask = at::ones({2, 5}, at::kLong);
  mask[0][4] = 0;
  expect_close(models::mean_embedding(hidden, mask)[0], hidden[0].slice(0, 0, 4).mean(0), 1e-6);
  EXPECT_TRUE(models::first_embedding(hidden).equal(hidden.select(1, 0)));
  EXPECT_THAT(error_of([] { open_model(kFolders / "bert", {.head = "sequence_classification"}); }),
              HasSubstr("2 missing: classifier.weight, classifier.bias"));
  EXPECT_THAT(error_of([] { open_model(kFolders / "bert", {.head = "masked_ml"}); }), HasSubstr("masked_lm"));
  EXPECT_THAT(error_of([] { open_model(kFolders / "gpt2", {.head = "none"}); }), HasSubstr("decoder"));
}

}  // namespace
}  // namespace levin::language_tests
