// Modules that are trained whole beside adapters: modules_to_save of PEFT.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/models/decoder_loss.h"
#include "levin/models/language/weight_plan.h"
#include "levin/models/lora/lora.h"
#include "levin/models/lora/saved_modules.h"
#include "levin/nn/functional.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/temporary_folder.h"

namespace levin::lora_modules_tests {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/models/fixtures";

/// Adapters of make_lora_fixtures.py, and the models below them.
const std::vector<std::pair<std::string, std::string>> kWhole{
    {"llama_whole", "llama"},          {"gpt2_whole", "gpt2"},
    {"gpt_neox_whole", "gpt_neox"},    {"gpt2_classes", "gpt2_sequence"},
    {"bert_classes", "bert_sequence"}, {"distilbert_classes", "distilbert_sequence"}};

models::LanguageModel base_of(const std::string& name) {
  return models::open_model(kFixtures / "language" / name, {.dtype = at::kFloat});
}

Tensor logits_of(models::LanguageModel& model, const Tensor& ids) {
  return model.decoder ? model.decoder(ids) : model.encoder(ids);
}

Tensor loss_of(models::LanguageModel& model, const Tensor& ids) {
  const auto logits = logits_of(model, ids);
  if (logits.dim() == 2) return cross_entropy(logits, at::tensor({2, 0}, at::kLong));
  return model.decoder(ids, models::next_tokens(ids));
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// Relative to the largest number where that is above 1.
double gradient_difference(const Tensor& a, const Tensor& b) {
  return difference(a, b) / std::max(1.0, b.abs().max().item<double>());
}

TEST(LoraModules, EqualThoseOfPeft) {
  for (const auto& [name, base] : kWhole) {
    SCOPED_TRACE(name);
    const WeightFile file(kFixtures / "lora" / name / "outputs.st");
    const auto ids = file.read("ids"), expected = file.read("logits");
    auto model = base_of(base);
    models::load_lora(model, kFixtures / "lora" / name);
    EXPECT_LT(difference(logits_of(model, ids), expected), 1e-5);

    loss_of(model, ids).backward();
    size_t compared = 0;
    for (const auto& parameter : models::detail::saved_parameters(model, model.saved_modules)) {
      const models::detail::TheirWeight theirs{.names = parameter.names, .layout = parameter.layout};
      const auto parts = models::detail::weights_for_file(
          parameter.tensor.grad(), theirs, models::detail::qkv_rows(model.body()), model.body().num_heads);
      for (size_t i = 0; i < parts.size(); ++i, ++compared)
        EXPECT_LT(gradient_difference(parts[i], file.read("grad.base_model.model." + parameter.names[i])), 1e-5)
            << parameter.names[i];
    }
    size_t in_file = 0;
    for (const auto& entry : file.entries())
      in_file += entry.name.starts_with("grad.") && entry.name.find("lora_") == std::string::npos;
    EXPECT_EQ(compared, in_file);
    // What is trained is what the optimizer gets, and nothing else has gradients.
    size_t trained = 0;
    for (const auto& parameter : model.module().parameters()) trained += parameter.grad().defined();
    EXPECT_EQ(trained, models::lora_parameters(model).size());

    const testing::TemporaryFolder temporary;
    models::save_lora(model, temporary / "saved");
    auto again = base_of(base);
    models::load_lora(again, temporary / "saved");
    EXPECT_TRUE(logits_of(again, ids).equal(logits_of(model, ids)));
    const WeightFile written(temporary / "saved" / "adapter_model.safetensors"),
        theirs(kFixtures / "lora" / name / "adapter_model.safetensors");
    EXPECT_EQ(written.entries().size(), theirs.entries().size());
    for (const auto& entry : theirs.entries()) EXPECT_TRUE(written.contains(entry.name)) << entry.name;

    models::merge_lora(model);
    EXPECT_LT(difference(logits_of(model, ids), expected), 1e-5);
    models::save_model(model, temporary / "whole");
    auto whole = models::open_model(temporary / "whole");
    EXPECT_LT(difference(logits_of(whole, ids), expected), 1e-5);
  }
}

TEST(LoraModules, TrainWholeAndTiedHeadsAsCopies) {
  auto model = base_of("gpt2");
  ASSERT_TRUE(model.body().tied_head);
  const auto ids = at::randint(2, 50, {2, 7});
  const auto before = model.decoder(ids);
  models::add_lora(model, {.rank = 2, .target_modules = {"c_attn"}, .modules_to_save = {"wte"}});
  EXPECT_TRUE(model.decoder(ids).equal(before));
  EXPECT_FALSE(model.body().tied_head);
  EXPECT_TRUE(model.decoder->tokens->weight.requires_grad());
  EXPECT_FALSE(model.decoder->head->weight.requires_grad());
  EXPECT_FALSE(model.decoder->head->weight.is_same(model.decoder->tokens->weight));
  models::train_modules(model, {"lm_head"});
  EXPECT_THAT(model.saved_modules, ElementsAre("wte", "lm_head"));
  EXPECT_TRUE(model.decoder->head->weight.requires_grad());
  EXPECT_EQ(models::lora_parameters(model).size(), 6u);
}

TEST(LoraModules, WhatCannotBeTrainedWholeIsRefused) {
  const auto refused = [](const std::string& base, const models::LoraOptions& options,
                          const std::string& quantize = {}) {
    return error_of([&] {
      auto model = models::open_model(kFixtures / "language" / base, {.dtype = at::kFloat, .quantize = quantize});
      models::add_lora(model, options);
    });
  };
  EXPECT_THAT(refused("llama", {.modules_to_save = {"lm_hed"}}), HasSubstr("did you mean \"lm_head\"?"));
  EXPECT_THAT(refused("llama", {.target_modules = {"q_proj"}, .modules_to_save = {"mlp.up_proj", "q_proj"}}),
              HasSubstr("has adapters"));
  EXPECT_THAT(refused("llama", {.target_modules = {"up_proj"}, .modules_to_save = {"q_proj"}}),
              HasSubstr("name all of these"));
  EXPECT_THAT(refused("llama", {.target_modules = {"up_proj"}, .modules_to_save = {"down_proj"}}, "int8"),
              HasSubstr("is quantized"));
  EXPECT_THAT(refused("bert_masked", {.target_modules = {"query"}, .modules_to_save = {"cls.predictions.transform"}}),
              HasSubstr("not supported"));

  const testing::TemporaryFolder temporary;
  const auto folder = temporary / "lora";
  fs::copy(kFixtures / "lora/llama_whole", folder);
  const auto config = models::ModelConfig(read_file(folder / "adapter_config.json"), "x");
  const auto load = [&](const std::string& key, const std::string& json) {
    write_file(folder / "adapter_config.json", config.with({{key, json}}));
    auto model = base_of("llama");
    auto line = error_of([&] { models::load_lora(model, folder); });
    EXPECT_TRUE(models::lora_parameters(model).empty());
    return line;
  };
  EXPECT_THAT(load("modules_to_save", "[\"lm_head\"]"), HasSubstr("in no module of modules_to_save"));
  EXPECT_THAT(load("modules_to_save", "[\"lm_head\", \"embed_tokens\", \"norm\"]"), HasSubstr("lacks"));
  EXPECT_THAT(load("modules_to_save", "3"), HasSubstr("modules_to_save"));
}

TEST(LoraModules, PeftReadsWhatWasSaved) {
  const auto python = testing::python_with("peft, transformers, safetensors");
  if (!python) GTEST_SKIP() << "no Python with peft, transformers and safetensors (LEVIN_PEER_PYTHON names one)";
  const testing::TemporaryFolder temporary;
  std::vector<std::string> command{*python, (kFixtures / "../make_lora_fixtures.py").lexically_normal().string()};
  for (const auto& [name, base] : kWhole) {
    auto model = base_of(base);
    models::load_lora(model, kFixtures / "lora" / name);
    models::save_lora(model, temporary / name);
    command.insert(command.end(), {(kFixtures / "lora" / name).string(), (temporary / name).string()});
  }
  const auto ran = testing::run_program(command);
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("6 adapters: equal"));
}

}  // namespace
}  // namespace levin::lora_modules_tests
