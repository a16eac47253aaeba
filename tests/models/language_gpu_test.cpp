#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/models/language_score.h"
#include "levin/models/text_encoder.h"
#include "levin/models/text_encoder_sizes.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"

namespace levin::language_gpu_tests {
namespace {

namespace fs = std::filesystem;
using models::open_model;

const fs::path kGpuFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

class LanguageGpu : public testing::GpuTest {};

double largest_difference(const Tensor& a, const Tensor& b) {
  return (a.cpu().to(at::kFloat) - b.to(at::kFloat)).abs().max().item<double>();
}

TEST_F(LanguageGpu, FoldersGiveTheNumbersOfTheCpu) {
  const at::NoGradGuard no_grad;
  for (const auto& item : fs::directory_iterator(kGpuFolders)) {
    SCOPED_TRACE(item.path().filename().string());
    const WeightFile file(item.path() / "outputs.st");
    const auto ids = file.read("ids").to(at::kCUDA);
    auto model = open_model(item.path(), {.device = at::kCUDA});
    auto narrow = open_model(item.path(), {.dtype = at::kBFloat16, .device = at::kCUDA});
    if (model.encoder) {
      const auto mask = file.read("mask"), real = mask.unsqueeze(2).to(at::kFloat);
      const auto types = file.contains("types") ? file.read("types").to(at::kCUDA) : Tensor();
      const auto hidden = model.encoder->hidden_states(ids, mask.to(at::kCUDA), types);
      EXPECT_LT(largest_difference(hidden.cpu() * real, file.read("hidden") * real), 1e-3);
      EXPECT_TRUE(narrow.encoder(ids, at::zeros_like(ids)).isfinite().all().item<bool>());
      continue;
    }
    const auto expected = file.read(model.decoder->score ? "head" : "logits");
    EXPECT_LT(largest_difference(model.decoder(ids), expected), 1e-3);
    auto mask = at::ones_like(ids);
    EXPECT_LT(largest_difference(model.decoder(ids, Tensor(), mask), expected), 1e-3);
    const auto logits = narrow.decoder(ids).cpu().to(at::kFloat);
    EXPECT_LT((logits - expected).norm().item<double>(), 0.05 * expected.norm().item<double>());
    mask.slice(1, 0, 3).zero_();
    EXPECT_TRUE(narrow.decoder(ids, Tensor(), mask).isfinite().all().item<bool>());
  }
}

TEST_F(LanguageGpu, PackedTextsEqualTextsAlone) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"gpt2", "llama", "bloom", "gemma2"}) {
    SCOPED_TRACE(name);
    auto model = open_model(kGpuFolders / name, {.device = at::kCUDA});
    const auto ids = at::TensorOptions().dtype(at::kLong).device(at::kCUDA);
    const auto first = at::randint(2, 50, {1, 4}, ids), second = at::randint(2, 50, {1, 7}, ids);
    const auto mask = at::cat({at::ones_like(first), at::full_like(second, 2)}, 1);
    const auto logits = model.decoder(at::cat({first, second}, 1), Tensor(), mask);
    EXPECT_LT(largest_difference(logits.slice(1, 0, 4), model.decoder(first).cpu()), 1e-3);
    EXPECT_LT(largest_difference(logits.slice(1, 4), model.decoder(second).cpu()), 1e-3);
  }
}

TEST_F(LanguageGpu, GradientsAreThoseOfTheCpu) {
  for (const char* name : {"llama", "bloom", "gpt_neox", "gemma2", "qwen3", "opt_post"}) {
    SCOPED_TRACE(name);
    const auto ids = WeightFile(kGpuFolders / name / "outputs.st").read("ids");
    auto cpu = open_model(kGpuFolders / name), gpu = open_model(kGpuFolders / name, {.device = at::kCUDA});
    cpu.decoder(ids, models::next_tokens(ids)).backward();
    gpu.decoder(ids.to(at::kCUDA), models::next_tokens(ids).to(at::kCUDA)).backward();
    const auto expected = cpu.module().named_parameters();
    for (const auto& item : gpu.module().named_parameters())
      EXPECT_LT(largest_difference(item.value().grad(), expected[item.key()].grad()), 2e-3) << item.key();
  }
}

// What the last block of a classifier computes for its first token.
class TextEncoderGpu : public testing::GpuTest {
 protected:
  static models::TextEncoder small_classifier(const std::string& name) {
    auto options = models::text_encoder_options(name);
    auto& body = options.body;
    body.vocab_size = 100, body.max_positions = 514, body.num_layers = 2, body.num_heads = 4, body.hidden_dim = 256;
    body.mlp_dim = 512, body.dropout = 0, body.attention_dropout = 0;
    options.classifier_dropout = 0;
    if (options.block_size > 0) options.block_size = 16, options.random_blocks = 1;
    torch::manual_seed(1);
    return models::TextEncoder(options);
  }

  struct Result {
    Tensor logits;
    std::vector<Tensor> gradients;
  };

  static Result run(models::TextEncoder& encoder, const Tensor& ids, const Tensor& mask, bool first) {
    const auto logits =
        first ? encoder(ids, mask) : encoder->head_output(encoder->hidden_states(ids, mask)).to(at::kFloat);
    const auto weights = at::arange(logits.numel(), torch::kFloat).cos().view(logits.sizes());
    (logits * weights.to(logits.device())).sum().backward();
    Result result{.logits = logits.detach().cpu().to(at::kFloat)};
    for (const auto& parameter : encoder->parameters())
      if (parameter.grad().defined()) result.gradients.push_back(parameter.grad().to(at::kCPU, at::kFloat));
    encoder->zero_grad();
    return result;
  }

  static double distance(const Tensor& found, const Tensor& expected) {
    return ((found - expected).norm() / (expected.norm() + 1e-3)).item<double>();
  }

  static void expect_close(const Result& found, const Result& expected, double tolerance) {
    EXPECT_LT(distance(found.logits, expected.logits), tolerance);
    ASSERT_EQ(found.gradients.size(), expected.gradients.size());
    for (size_t i = 0; i < found.gradients.size(); ++i)
      EXPECT_LT(distance(found.gradients[i], expected.gradients[i]), tolerance) << i;
  }
};

TEST_F(TextEncoderGpu, FirstTokenIsThatOfTheCpuInEveryPrecision) {
  for (const char* name : {"distilbert", "bert_base", "big_bird"}) {
    auto encoder = small_classifier(name);
    const auto ids = at::randint(2, 100, {3, 256}, at::kLong);
    auto padding = at::ones({3, 256}, at::kLong);
    padding[1].slice(0, 200).zero_();
    for (const auto& mask : {Tensor(), padding}) {
      SCOPED_TRACE(std::string(name) + (mask.defined() ? ", padded" : ""));
      encoder->to(at::kCPU, at::kFloat);
      const auto expected = run(encoder, ids, mask, /*first=*/false);
      const auto there = ids.cuda(), mask_there = mask.defined() ? mask.cuda() : mask;
      encoder->to(at::kCUDA);
      expect_close(run(encoder, there, mask_there, true), expected, 5e-3);
      {
        Autocast autocast(at::kCUDA, at::kBFloat16);
        expect_close(run(encoder, there, mask_there, true), expected, 0.2);
      }
      for (const auto dtype : {at::kBFloat16, at::kHalf}) {
        encoder->to(dtype);
        expect_close(run(encoder, there, mask_there, true), run(encoder, there, mask_there, false), 0.2);
        encoder->to(at::kFloat);
      }
    }
  }
}

}  // namespace
}  // namespace levin::language_gpu_tests
