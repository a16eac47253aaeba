// Ranks that share one GPU have a model together; everything goes over Gloo. The test program itself must not touch
// CUDA: its forked ranks could not use it any more.
#include <filesystem>

#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "levin/generate/generate.h"
#include "levin/models/folder.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"
#include "levin/testing/ranks.h"

namespace levin::tensor_generate_gpu_tests {
namespace {

namespace fs = std::filesystem;
const fs::path kFolders = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

class TensorGenerateGpu : public testing::GpuTest {};

TEST_F(TensorGenerateGpu, LogitsAndTokensAreThoseOfTheCpu) {
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<int64_t>> prompts{{7, 3, 11, 42, 5}, {9, 30}};
  const GenerateOptions greedy{.max_new_tokens = 4, .temperature = 0};
  struct Expected {
    std::string name;
    Tensor logits;
    std::vector<Generated> rows;
  };
  std::vector<Expected> all;
  const auto ids = at::arange(12, at::kLong).view({2, 6});
  for (const std::string name : {"gpt2", "llama", "bloom", "gemma2", "gpt_neox"}) {
    auto model = models::open_model(kFolders / name).decoder;
    all.push_back({name, model(ids), generate(model, prompts, greedy)});
  }
  testing::RanksOptions options;
  options.device = c10::Device(at::kCUDA, 0);
  options.collective.backend = "auto";
  testing::run_ranks(
      2,
      [&](Collective& group) {
        const at::NoGradGuard without_grad;
        const TensorRanks ranks(&group, [](Collective*) {});
        for (const auto& expected : all) {
          auto model = models::open_model(kFolders / expected.name, {.device = at::kCUDA, .ranks = ranks}).decoder;
          EXPECT_TRUE(at::allclose(model(ids.cuda()).cpu(), expected.logits, 1e-3, 1e-4)) << expected.name;
          const auto rows = generate(model, prompts, greedy);
          for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i].ids, expected.rows[i].ids) << expected.name;
        }
      },
      options);
}

}  // namespace
}  // namespace levin::tensor_generate_gpu_tests
