// Guessed tokens on CUDA: a pass over several tokens of each row, behind steps that are graphs.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/generate/generate.h"
#include "levin/models/folder.h"
#include "levin/testing/gpu.h"
#include "levin/testing/paths.h"

namespace levin::generate_tests {
namespace {

using Ids = std::vector<int64_t>;

class SpeculationGpu : public testing::GpuTest {};

models::Decoder open(const std::string& name) {
  const auto folder = std::filesystem::path(testing::source_dir()) / "tests/models/fixtures/language" / name;
  return models::open_model(folder, {.dtype = at::kFloat, .device = c10::Device(at::kCUDA, 0)}).decoder;
}

TEST_F(SpeculationGpu, GuessesChangeNoGreedyToken) {
  const std::vector<Ids> prompts{{7, 3, 11, 42, 7, 3}, {9, 30, 2, 2, 17, 8, 9, 30}, {13}, {5, 5, 5}};
  for (const std::string name : {"llama", "gpt2", "bloom"}) {
    const auto model = open(name);
    for (const bool graphs : {false, true}) {
      GenerateOptions options{.max_new_tokens = 20, .temperature = 0, .cuda_graphs = graphs};
      const auto plain = generate(model, prompts, options);
      options.prompt_lookup = 4;
      const auto looked_up = generate(model, prompts, options);
      options.prompt_lookup = 0;
      options.draft = open(name);
      const auto drafted = generate(model, prompts, options);
      int64_t guessed = 0, taken = 0;
      for (size_t i = 0; i < prompts.size(); ++i) {
        EXPECT_EQ(looked_up[i].ids, plain[i].ids) << name << graphs << i;
        EXPECT_EQ(drafted[i].ids, plain[i].ids) << name << graphs << i;
        guessed += drafted[i].guessed_tokens, taken += drafted[i].taken_tokens;
      }
      EXPECT_GT(guessed, 10) << name;
      EXPECT_GE(taken, guessed * 9 / 10) << name;  // the draft is the model itself
    }
  }
}

TEST_F(SpeculationGpu, DrawsWithPromptLookupAreThoseOfAPlainRun) {
  const auto model = open("llama");
  GenerateOptions options{.max_new_tokens = 20, .temperature = 0.8, .top_k = 5, .seed = 3};
  const std::vector<Ids> prompts{{7, 3, 11, 42, 7, 3}, {5, 5, 5}};
  const auto plain = generate(model, prompts, options);
  options.prompt_lookup = 4;
  const auto found = generate(model, prompts, options);
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(found[i].ids, plain[i].ids) << i;
}

}  // namespace
}  // namespace levin::generate_tests
