// Generation on CUDA: the tokens of transformers, operator by operator, as graphs, and with the kernels of decoding.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/generate/decode_batch.h"
#include "levin/generate/generate.h"
#include "levin/models/folder.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"
#include "levin/testing/scoped_variable.h"

namespace levin::generate_tests {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int64_t>;

const fs::path kTestFolder = fs::path(levin::testing::source_dir()) / "tests";
const std::vector<Ids> kGpuPrompts{{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17, 8, 1, 44, 23}, {13}};

class GenerateGpu : public testing::GpuTest {};

models::Decoder gpu_model(const std::string& name) {
  auto model =
      models::open_model(kTestFolder / "models/fixtures/language" / name, {.dtype = at::kFloat, .device = at::kCUDA})
          .decoder;
  if (model->options.rotary_scaling.type != "dynamic") model->options.max_positions = 80;
  return model;
}

/// A Llama of heads that the kernels take, with new weights.
models::Decoder wide_model(at::ScalarType dtype) {
  models::DecoderOptions options{.vocab_size = 512,
                                 .max_positions = 1024,
                                 .num_layers = 3,
                                 .num_heads = 8,
                                 .hidden_dim = 512,
                                 .norm = "rms",
                                 .activation = "silu_gated",
                                 .positions = "rotary",
                                 .tied_head = false,
                                 .kv_heads = 2};
  auto model = models::decoder(options);
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters())
    if (parameter.dim() > 1) parameter.mul_(4);
  model->to(at::kCUDA, dtype);
  model->eval();
  return model;
}

TEST_F(GenerateGpu, TokensAreTransformersTokens) {
  std::ifstream stream(kTestFolder / "generate/fixtures/tokens.json");
  const auto fixtures = nlohmann::json::parse(stream);
  for (const std::string name : {"llama", "llama_dynamic", "llama_yarn", "mistral", "gemma2", "bloom", "gpt_neox_odd"})
    for (const bool graphs : {false, true})
      for (const std::string kernels : {"0", "1"}) {
        const testing::ScopedVariable variable("LEVIN_DECODE_KERNELS", kernels);
        const auto rows =
            generate(gpu_model(name), kGpuPrompts, {.max_new_tokens = 64, .temperature = 0, .cuda_graphs = graphs});
        for (size_t i = 0; i < rows.size(); ++i)
          EXPECT_EQ(rows[i].ids, fixtures[name]["greedy"][i].get<Ids>()) << name << graphs << kernels;
      }
}

TEST_F(GenerateGpu, KernelsAndGraphsGiveTheLogitsOfOperators) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::NoGradGuard no_grad;
    auto model = wide_model(dtype);
    std::vector<at::Tensor> found;
    for (const auto& [kernels, graphs] : {std::pair{"0", false}, {"1", false}, {"0", true}, {"1", true}}) {
      const testing::ScopedVariable variable("LEVIN_DECODE_KERNELS", kernels);
      detail::DecodeBatch batch(model, {.rows = 3, .capacity = 900, .graphs = graphs});
      const Ids shorter(7, 3), longer(600, 5);
      const std::vector<const Ids*> prompts{&shorter, &longer};
      batch.append(prompts);
      std::vector<at::Tensor> logits;
      for (int64_t i = 0; i < 24; ++i) logits.push_back(batch.decode(Ids{i, 2 * i}).clone());
      found.push_back(at::stack(logits));
    }
    const auto scale = found[0].abs().max().item<double>();
    for (size_t i = 1; i < found.size(); ++i)
      EXPECT_LT((found[i] - found[0]).abs().max().item<double>(), (dtype == at::kFloat ? 1e-3 : 5e-2) * scale) << i;
  }
}

TEST_F(GenerateGpu, DrawsAreTheSameAloneAndInABatch) {
  GenerateOptions options{.max_new_tokens = 30, .top_k = 40, .top_p = 0.9, .min_p = 0.01, .seed = 4};
  auto model = wide_model(at::kFloat);
  const auto together = generate(model, kGpuPrompts, options);
  options.batch = 1;
  const auto alone = generate(model, kGpuPrompts, options);
  for (size_t i = 0; i < together.size(); ++i) EXPECT_EQ(together[i].ids, alone[i].ids);
}

}  // namespace
}  // namespace levin::generate_tests
