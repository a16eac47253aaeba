#include <filesystem>

#include <gtest/gtest.h>

#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/models/language_score.h"
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

}  // namespace
}  // namespace levin::language_gpu_tests
