#include "levin/models/lora/lora.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/models/language/weight_plan.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/temporary_folder.h"

namespace levin::lora_tests {
namespace {

namespace fs = std::filesystem;
using models::LanguageModel;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/models/fixtures";
const std::vector<std::string> kAdapted{"llama", "gpt2", "bloom", "gpt_neox"};

LanguageModel base_of(const std::string& name) {
  return models::open_model(kFixtures / "language" / name);
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// Gradients are sums over all tokens: relative to their largest number where that is above 1.
double gradient_difference(const Tensor& a, const Tensor& b) {
  return difference(a, b) / std::max(1.0, b.abs().max().item<double>());
}

TEST(Lora, IsPeft) {
  for (const auto& name : kAdapted) {
    SCOPED_TRACE(name);
    const WeightFile file(kFixtures / "lora" / name / "outputs.st");
    const auto ids = file.read("ids"), expected = file.read("logits");
    auto model = base_of(name);
    EXPECT_GT(difference(model.decoder(ids), expected), 0.01);
    models::load_lora(model, kFixtures / "lora" / name);
    EXPECT_LT(difference(model.decoder(ids), expected), 1e-5);

    model.decoder(ids, models::next_tokens(ids)).backward();
    size_t gradients = 0;
    for (const auto& module : model.module().modules()) {
      const auto* adapter = dynamic_cast<models::LowRankImpl*>(module.get());
      if (!adapter) continue;
      const auto key = "grad.base_model.model." + adapter->module_name;
      const auto heads = model.body().num_heads;
      const auto b = adapter->b.grad();
      EXPECT_LT(gradient_difference(adapter->a.grad(), file.read(key + ".lora_A.weight")), 1e-5) << key;
      EXPECT_LT(gradient_difference(adapter->by_head ? models::detail::heads_apart(b, heads, true) : b,
                                    file.read(key + ".lora_B.weight")),
                1e-5)
          << key;
      gradients += 2;
    }
    EXPECT_EQ(gradients, file.entries().size() - 2);
    EXPECT_EQ(models::lora_parameters(model).size(), gradients);
    for (const auto& item : model.module().named_parameters()) {
      EXPECT_EQ(item.value().grad().defined(), item.key().find(".lora_") != std::string::npos) << item.key();
    }

    const testing::TemporaryFolder temporary;
    models::save_lora(model, temporary / "saved");
    auto again = base_of(name);
    models::load_lora(again, temporary / "saved");
    EXPECT_TRUE(again.decoder(ids).equal(model.decoder(ids)));

    EXPECT_THAT(error_of([&] { models::save_model(model, temporary / "whole"); }), HasSubstr("merge_lora"));
    models::merge_lora(model);
    EXPECT_LT(difference(model.decoder(ids), expected), 1e-5);
    EXPECT_TRUE(models::lora_parameters(model).empty());
    models::save_model(model, temporary / "whole");
    EXPECT_LT(difference(models::open_model(temporary / "whole").decoder(ids), expected), 1e-5);
  }
}

TEST(Lora, BeginsAsNoChangeAndTrainsAlone) {
  auto model = base_of("llama");
  const auto ids = at::randint(2, 50, {2, 7});
  const auto before = model.decoder(ids);
  models::add_lora(model, {.rank = 2, .alpha = 4, .target_modules = {"q_proj", "mlp.up_proj"}});
  EXPECT_TRUE(model.decoder(ids).equal(before));
  EXPECT_EQ(models::lora_parameters(model).size(), 8u);
  model.decoder(ids, models::next_tokens(ids)).backward();
  for (const auto& parameter : models::lora_parameters(model)) EXPECT_TRUE(parameter.grad().defined());
  EXPECT_THAT(error_of([&] { models::add_lora(model); }), HasSubstr("adapters already"));

  auto all = base_of("gpt2");
  models::add_lora(all);
  EXPECT_EQ(models::lora_parameters(all).size(), 16u);
  auto other = base_of("gpt2");
  EXPECT_THAT(error_of([&] { models::add_lora(other, {.target_modules = {"c_atn"}}); }),
              HasSubstr("did you mean \"c_attn\"?"));
  EXPECT_THAT(error_of([&] { models::merge_lora(other); }), HasSubstr("no adapters"));
  EXPECT_THAT(error_of([&] { models::save_lora(other, "x"); }), HasSubstr("no adapters"));
}

TEST(Lora, WhatIsNotPlainLoraIsRefused) {
  const testing::TemporaryFolder temporary;
  const auto folder = temporary / "lora";
  fs::copy(kFixtures / "lora/llama", folder);
  const auto config = read_file(folder / "adapter_config.json");
  const auto refused = [&](const std::string& key, const std::string& json, const std::string& expected) {
    write_file(folder / "adapter_config.json", models::ModelConfig(config, "x").with({{key, json}}));
    auto model = base_of("llama");
    const auto line = error_of([&] { models::load_lora(model, folder); });
    EXPECT_THAT(line, HasSubstr(expected));
    EXPECT_TRUE(models::lora_parameters(model).empty());
  };
  refused("peft_type", "\"IA3\"", "peft_type must be \"LORA\"");
  refused("use_dora", "true", "use_dora");
  refused("init_lora_weights", "\"pissa_niter_4\"", "PEFT changes the weights of the model");
  refused("bias", "\"all\"", "bias");
  refused("r", "0", "r 0 is not allowed");
  refused("alpha_pattern", "{\"(a+)+$\": 3}", "alpha_pattern");
  write_file(folder / "adapter_config.json", config);
  auto other = base_of("gpt2");
  EXPECT_THAT(error_of([&] { models::load_lora(other, folder); }), HasSubstr("no LoRA of a linear layer"));
  EXPECT_THAT(error_of([&] { models::load_lora(other, temporary / "none"); }), HasSubstr("is not there"));
}

TEST(Lora, PeftReadsWhatWasSaved) {
  const auto python = testing::python_with("peft, transformers, safetensors");
  if (!python) GTEST_SKIP() << "no Python with peft, transformers and safetensors (LEVIN_PEER_PYTHON names one)";
  const testing::TemporaryFolder temporary;
  std::vector<std::string> command{*python, (kFixtures / "../make_lora_fixtures.py").lexically_normal().string()};
  for (const auto& name : kAdapted) {
    auto model = base_of(name);
    models::load_lora(model, kFixtures / "lora" / name);
    models::save_lora(model, temporary / name);
    command.insert(command.end(), {(kFixtures / "lora" / name).string(), (temporary / name).string()});
  }
  const auto ran = testing::run_program(command);
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("4 adapters: equal"));
}

}  // namespace
}  // namespace levin::lora_tests
