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
#include "levin/nn/tie.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::language_tests {
namespace {

namespace fs = std::filesystem;
using models::LanguageModel;
using models::open_model;
using testing::error_of;
using ::testing::AllOf;
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
  const auto& architecture = models::architecture_of(model.config);
  size_t compared = 0;
  for (const auto& [name, parameter, aliases] : named_unique_parameters(model.module())) {
    const auto theirs = models::detail::their_weight(architecture, name);
    ASSERT_TRUE(theirs) << name;
    const auto parts = models::detail::weights_for_file(parameter.grad(), *theirs, rows_of(model.decoder->options),
                                                        model.decoder->options.num_heads);
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string key;
      for (const auto& each : {std::string(architecture.prefix) + theirs->names[i], theirs->names[i], theirs->also})
        if (file.contains("grad." + each)) key = "grad." + each;
      ASSERT_FALSE(key.empty()) << name;
      const auto expected = file.read(key);
      expect_close(projected(parts[i]), expected, 1e-5 * std::max(1.0, largest(expected)), key);
      ++compared;
    }
  }
  EXPECT_EQ(compared, file.entries().size() - 3);
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

INSTANTIATE_TEST_SUITE_P(
    Folders, Language,
    ::testing::Values("gpt2", "gpt2_by_layer", "gpt2_bin", "llama", "llama_biases", "llama_rope3", "llama_linear",
                      "llama_dynamic", "llama_yarn", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "bloom",
                      "bloom_residual", "opt", "opt_post", "opt_wide", "galactica", "gpt_neox", "gpt_neox_sequential",
                      "gpt_neox_odd"),
    [](const auto& info) { return info.param; });

}  // namespace
}  // namespace levin::language_tests
