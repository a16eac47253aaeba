#include <cmath>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/io/weights/safetensors.h"
#include "levin/io/weights/weights.h"
#include "levin/models/decoder_positions.h"
#include "levin/models/folder.h"
#include "levin/models/language/architecture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/temporary_folder.h"

namespace levin::language_folder_tests {
namespace {

namespace fs = std::filesystem;
using models::open_model;
using ::testing::AllOf;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kOriginals = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/language";

/// A copy of a folder of the fixtures, to be changed.
class LanguageFolder : public ::testing::Test {
 protected:
  void start(const std::string& name) {
    fs::remove_all(path());
    fs::copy(kOriginals / name, path());
  }
  fs::path path() const { return temporary_ / "model"; }
  void set(const std::string& key, const std::string& json) {
    const auto text = models::ModelConfig::read(path() / "config.json").with({{key, json}});
    write_file(path() / "config.json", text);
  }
  NamedTensors tensors() const {
    NamedTensors all;
    const WeightFile file(path());
    for (const auto& entry : file.entries()) all.emplace_back(entry.name, file.read(entry.name));
    return all;
  }
  void write(const NamedTensors& all) { write_safetensors(path() / "model.safetensors", all); }
  std::string error() const {
    auto line = error_of([&] { open_model(path()); });
    EXPECT_EQ(line.find('\n'), line.npos) << line;
    return line;
  }
  /// The error of a Llama whose config has this value.
  std::string error_with(const std::string& key, const std::string& json) {
    start("llama");
    set(key, json);
    return error();
  }

  testing::TemporaryFolder temporary_;
};

Tensor& named(NamedTensors& all, const std::string& name) {
  for (auto& [key, tensor] : all)
    if (key == name) return tensor;
  throw std::runtime_error("no " + name);
}

TEST_F(LanguageFolder, HostileConfigsAreRefused) {
  EXPECT_THAT(error_with("num_attention_heads", "0"), HasSubstr("num_attention_heads 0 is not allowed"));
  EXPECT_THAT(error_with("num_attention_heads", "\"4\""), HasSubstr("num_attention_heads \"4\" is not an integer"));
  EXPECT_THAT(error_with("num_attention_heads", "4.0"), HasSubstr("is not an integer"));
  EXPECT_THAT(error_with("num_attention_heads", ""), HasSubstr("num_attention_heads is missing"));
  EXPECT_THAT(error_with("num_attention_heads", "5"), HasSubstr("multiple of num_key_value_heads"));
  EXPECT_THAT(error_with("vocab_size", "1099511627776"), HasSubstr("vocab_size 1099511627776 is not allowed"));
  EXPECT_THAT(error_with("num_hidden_layers", "1000000000"), HasSubstr("not allowed"));
  EXPECT_THAT(error_with("num_hidden_layers", "18446744073709551615"), HasSubstr("not allowed"));
  EXPECT_THAT(error_with("hidden_size", "-16"), HasSubstr("hidden_size -16 is not allowed"));
  EXPECT_THAT(error_with("head_dim", "1048576"), HasSubstr("another shape"));
  EXPECT_THAT(error_with("rms_norm_eps", "\"x\""), HasSubstr("rms_norm_eps \"x\" is not a number"));
  EXPECT_THAT(error_with("rms_norm_eps", "-1"), HasSubstr("not allowed"));
  EXPECT_THAT(error_with("hidden_act", "\"silo\""), HasSubstr("did you mean \"silu\"?"));
  EXPECT_THAT(error_with("model_type", "\"lama\""), HasSubstr("did you mean \"llama\"?"));
  EXPECT_THAT(error_with("model_type", ""), HasSubstr("model_type is missing"));
  EXPECT_THAT(error_with("attention_bias", "1"), HasSubstr("attention_bias 1 is not true or false"));
  EXPECT_THAT(error_with("quantization_config", "{\"bits\": 4}"), HasSubstr("quantization_config"));
  EXPECT_THAT(error_with("rope_parameters", "{\"rope_type\": \"longrope\"}"), HasSubstr("rope_type"));
  EXPECT_THAT(error_with("rope_parameters", "{\"rope_type\": \"linear\", \"factor\": 0}"),
              HasSubstr("rope_parameters.factor 0 is not allowed"));
  EXPECT_THAT(error_with("rope_parameters", "{\"rope_type\": \"linear\"}"), HasSubstr("factor is missing"));
  EXPECT_THAT(error_with("rope_parameters", "3"), HasSubstr("not an object"));
  EXPECT_THAT(error_with("dtype", "\"int64\""), HasSubstr("not a dtype of models"));
  for (const char* text : {"", "{", "[]", "{\"rms_norm_eps\": NaN}", "3"}) {
    write_file(path() / "config.json", text);
    EXPECT_THAT(error(), HasSubstr("is not a JSON object")) << text;
  }
  fs::remove(path() / "config.json");
  EXPECT_THAT(error(), HasSubstr("needs a config.json"));
  EXPECT_THAT(error_of([&] { open_model(path() / "none"); }), HasSubstr("is not a folder"));
  start("bloom");
  set("slow_but_exact", "true");
  open_model(path());
  set("pretraining_tp", "2");
  EXPECT_THAT(error(), HasSubstr("drops biases"));
}

TEST_F(LanguageFolder, AnyValueOfAnyKeyIsAnErrorOfOneLineOrAModel) {
  const std::vector<std::string> values{"null",
                                        "-1",
                                        "0",
                                        "1",
                                        "3",
                                        "1e300",
                                        "0.5",
                                        "9223372036854775807",
                                        "true",
                                        "\"x\"",
                                        "\"gelu\"",
                                        "[]",
                                        "[1]",
                                        "{}",
                                        "[\"x\"]",
                                        "{\"a\": 1}",
                                        "{\"rope_type\": \"yarn\"}",
                                        "{\"rope_type\": \"dynamic\", \"factor\": 2}"};
  size_t models = 0, errors = 0;
  for (const auto& item : fs::directory_iterator(kOriginals)) {
    const auto text = read_file(item.path() / "config.json");
    const auto keys = nlohmann::json::parse(text);
    for (const auto& [key, old] : keys.items())
      for (const auto& value : values) {
        SCOPED_TRACE(item.path().filename().string() + ": " + key + " " + value);
        const models::ModelConfig config(models::ModelConfig(text, "config.json").with({{key, value}}), "config.json");
        const auto line = error_of([&] {
          const auto& architecture = models::architecture_of(config);
          models::check_options(architecture.decoder ? architecture.decoder(config)
                                                     : architecture.encoder(config).body);
        });
        EXPECT_EQ(line.find('\n'), line.npos) << line;
        (line.starts_with("[") ? errors : models) += 1;
      }
  }
  EXPECT_GT(models, 1000u);
  EXPECT_GT(errors, 1000u);
}

TEST_F(LanguageFolder, WhatDoesNotFitIsListedTogether) {
  start("llama");
  set("num_hidden_layers", "3");
  set("intermediate_size", "21");
  auto all = tensors();
  all.emplace_back("model.layers.2.self_attn.k_prox.weight", at::ones({2}));
  write(all);
  const auto line = error();
  EXPECT_THAT(line, AllOf(HasSubstr("9 missing: layers.2."), HasSubstr("1 not expected"), HasSubstr("k_prox"),
                          HasSubstr("is \"layers.2.self_attn.k_proj.weight\" meant?"),
                          HasSubstr("is [20, 16] in the file, [21, 16] by config.json")));
}

TEST_F(LanguageFolder, QueriesAndKeysOfOtherSizesAreRefused) {
  start("llama");
  set("num_key_value_heads", "4");
  EXPECT_THAT(error(), HasSubstr("k_proj.weight is [12, 16] in the file, [24, 16] by config.json"));
}

TEST_F(LanguageFolder, TypesThatAreNoWeightsAreRefused) {
  start("gpt2");
  auto all = tensors();
  const auto ln = named(all, "transformer.ln_f.weight");
  for (const auto dtype : {at::kLong, at::kDouble, at::kBool}) {
    named(all, "transformer.ln_f.weight") = ln.to(dtype);
    write(all);
    EXPECT_THAT(error(), HasSubstr("which is not read as float32"));
  }
  named(all, "transformer.ln_f.weight") = ln.to(at::kDouble);
  write(all);
  EXPECT_EQ(open_model(path(), {.dtype = at::kDouble}).dtype, at::kDouble);
}

TEST_F(LanguageFolder, HeadsAreTiedByTheFile) {
  start("gpt2");
  const auto ids = at::randint(2, 50, {1, 6});
  const auto expected = open_model(path()).decoder(ids);
  auto all = tensors();
  const auto embedding = named(all, "transformer.wte.weight");
  // An equal head is tied.
  all.emplace_back("lm_head.weight", embedding.clone());
  write(all);
  auto model = open_model(path());
  EXPECT_TRUE(model.decoder->options.tied_head);
  EXPECT_TRUE(model.notes.empty());
  EXPECT_TRUE(model.decoder(ids).equal(expected));
  // Another one is the head.
  named(all, "lm_head.weight") = embedding * 2;
  write(all);
  model = open_model(path());
  EXPECT_FALSE(model.decoder->options.tied_head);
  EXPECT_EQ(model.notes.size(), 1u);
  EXPECT_LT((model.decoder(ids) - expected * 2).abs().max().item<float>(), 1e-5);
  // Only a head: it is the embedding too.
  named(all, "lm_head.weight") = embedding;
  std::erase_if(all, [](const auto& item) { return item.first == "transformer.wte.weight"; });
  write(all);
  EXPECT_TRUE(open_model(path()).decoder(ids).equal(expected));
  // Neither.
  std::erase_if(all, [](const auto& item) { return item.first == "lm_head.weight"; });
  write(all);
  EXPECT_THAT(error(), HasSubstr("1 missing: wte.weight"));
  // Not tied, and no head.
  start("gpt2");
  set("tie_word_embeddings", "false");
  EXPECT_THAT(error(), HasSubstr("1 missing: lm_head.weight"));
}

TEST_F(LanguageFolder, PrefixesMayBeMissingOrDoubled) {
  start("llama");
  const auto ids = at::randint(2, 50, {1, 6});
  const auto expected = open_model(path()).decoder(ids);
  const auto original = tensors();
  for (const std::string prefix : {"", "model.model."}) {
    auto all = original;
    for (auto& [name, tensor] : all)
      if (name.starts_with("model.")) name = prefix + name.substr(6);
    write(all);
    EXPECT_TRUE(open_model(path()).decoder(ids).equal(expected)) << prefix;
  }
  auto all = original;
  all.emplace_back("norm.weight", named(all, "model.norm.weight"));
  write(all);
  EXPECT_THAT(error(), HasSubstr("has one tensor twice"));
  start("gpt_neox");
  all = tensors();
  for (auto& [name, tensor] : all)
    if (name == "embed_out.weight") name = "lm_head.weight";
  const auto neox = open_model(path()).decoder(ids);
  write(all);
  EXPECT_TRUE(open_model(path()).decoder(ids).equal(neox));
}

TEST_F(LanguageFolder, IndexesAreHostileToo) {
  start("gpt2_by_layer");
  const auto index = path() / "model.safetensors.index.json";
  const auto text = read_file(index);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    auto copy = text;
    copy.replace(copy.find(from), from.size(), to);
    write_file(index, copy);
  };
  const std::string shard = "model-00001-of-";
  const auto name = text.substr(text.find(shard), std::string("model-00001-of-00002.safetensors").size());
  replaced(name, "../x.safetensors");
  EXPECT_THAT(error(), HasSubstr("only names of files beside the index"));
  replaced(name, "model-00009-of-00009.safetensors");
  EXPECT_THAT(error(), HasSubstr("model-00009-of-00009.safetensors"));
  replaced("\"lm_head.weight\"", "\"lm_heat.weight\"");
  EXPECT_THAT(error(), HasSubstr("lm_heat.weight"));
  write_file(index, "[]");
  EXPECT_THAT(error(), HasSubstr("is not an index"));
  write_file(index, text);
  fs::resize_file(path() / name, fs::file_size(path() / name) - 2);
  EXPECT_THAT(error(), Not(HasSubstr("no error")));
  fs::resize_file(path() / name, 7);
  EXPECT_THAT(error(), HasSubstr("7 bytes"));
}

TEST_F(LanguageFolder, NewModelsAndMetaModelsHaveTheSizes) {
  start("llama");
  auto meta = models::open_model_meta(path());
  EXPECT_EQ(meta.body().num_layers, 2);
  const auto config = read_file(path() / "config.json");
  auto made = models::new_model(config, {.dtype = at::kBFloat16});
  EXPECT_EQ(made.decoder->options.kv_heads, 2);
  EXPECT_EQ(made.decoder->parameters()[0].scalar_type(), at::kBFloat16);
  models::save_model(made, temporary_ / "new");
  write_file(path() / "tokenizer.json", "{}");
  models::save_model(open_model(path()), temporary_ / "again");
  EXPECT_EQ(read_file(temporary_ / "again/tokenizer.json"), "{}");
  EXPECT_EQ(open_model(temporary_ / "new").dtype, at::kBFloat16);
  EXPECT_THAT(read_file(temporary_ / "new/config.json"), HasSubstr("\"dtype\": \"bfloat16\""));
}

TEST_F(LanguageFolder, TransformersReadsWhatWasSaved) {
  const auto python = testing::python_with("transformers, safetensors");
  if (!python) GTEST_SKIP() << "no Python with transformers and safetensors (LEVIN_PEER_PYTHON names one)";
  const auto script = (kOriginals / "../../read_saved_language.py").lexically_normal();
  std::vector<std::string> command{*python, script.string()};
  const std::vector<std::string> names{
      "gpt2_by_layer",  "gpt2_bin",  "llama",     "llama_biases", "llama_linear",   "mistral",
      "qwen2",          "qwen3",     "gemma",     "gemma2",       "bloom_residual", "opt_post",
      "opt_wide",       "galactica", "gpt_neox",  "gpt_neox_odd", "bert_masked",    "distilbert_masked",
      "roberta_masked", "mixtral",   "qwen2_moe", "qwen3_moe"};
  for (const auto& name : names) {
    models::save_model(open_model(kOriginals / name), temporary_ / name,
                       {.max_shard_size = name == "llama" ? uint64_t{5000} : uint64_t{1} << 30});
    command.insert(command.end(), {(kOriginals / name).string(), (temporary_ / name).string()});
  }
  const auto ran = testing::run_program(command);
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("22 folders: equal"));
}

TEST(LanguagePositions, AlibiSlopesAreKnownNumbers) {
  const auto at = [](int64_t heads, int64_t i) { return models::alibi_slopes(heads)[i].item<float>(); };
  EXPECT_FLOAT_EQ(at(8, 0), 0.5f);
  EXPECT_FLOAT_EQ(at(8, 7), 0.00390625f);
  EXPECT_FLOAT_EQ(at(12, 8), 0.70710678f);
  EXPECT_FLOAT_EQ(at(12, 11), 0.08838835f);
  EXPECT_FLOAT_EQ(at(112, 0), 0.91700404f);
  EXPECT_FLOAT_EQ(at(112, 64), 0.95760328f);
  EXPECT_FLOAT_EQ(at(112, 111), 0.01631678f);
  EXPECT_NEAR(models::alibi_slopes(112).sum().item<float>(), 22.36329, 1e-4);
  EXPECT_EQ(models::alibi_slopes(14).size(0), 14);
}

TEST(LanguagePositions, RotaryScalingsOfRealModelsAreTransformers) {
  const WeightFile file(kOriginals / "../language_ropes.safetensors");
  using models::RotaryScaling;
  const auto expect = [&](const std::string& name, double base, int64_t positions, const RotaryScaling& scaling) {
    SCOPED_TRACE(name);
    models::DecoderOptions options{.max_positions = positions, .num_heads = 2, .hidden_dim = 256};
    options.positions = "rotary";
    options.rotary_base = base;
    options.rotary_scaling = scaling;
    models::check_options(options);
    const auto frequencies = models::rotary_frequencies(options, 20000, at::kCPU),
               known = file.read(name + ".inv_freq");
    EXPECT_LT(((frequencies - known) / known).abs().max().item<float>(), 1e-6);
    EXPECT_LT((frequencies - known).abs().max().item<float>(), 1e-7);
    const auto angles = models::rotary_angles(options, 20000, {}, at::kCPU).select(1, 19999);
    EXPECT_LT((angles[0] - file.read(name + ".cos")).abs().max().item<float>(), 5e-3);
    EXPECT_LT((angles[1] - file.read(name + ".sin")).abs().max().item<float>(), 5e-3);
  };
  expect("llama3", 500000, 131072, {.type = "llama3", .factor = 8, .original_positions = 8192});
  expect("yarn", 1000000, 131072, {.type = "yarn", .factor = 4, .original_positions = 32768});
  expect("yarn_mscale", 10000, 163840,
         {.type = "yarn",
          .factor = 40,
          .original_positions = 4096,
          .beta_fast = 16,
          .truncate = false,
          .mscale = 0.707,
          .mscale_all_dim = 1});
  expect("dynamic", 10000, 4096, {.type = "dynamic", .factor = 3});
  expect("linear", 10000, 32768, {.type = "linear", .factor = 8});
}

TEST(LanguagePositions, CountTokensOnly) {
  const auto mask = at::tensor({0, 0, 1, 1, 1, 1, 1, 0}, at::kLong).view({2, 4});
  EXPECT_TRUE(models::token_positions(mask).equal(at::tensor({0, 0, 0, 1, 0, 1, 2, 2}, at::kLong).view({2, 4})));
  auto model = models::decoder({.vocab_size = 9, .max_positions = 8, .num_layers = 1, .num_heads = 1, .hidden_dim = 4});
  const auto ids = at::zeros({2, 4}, at::kLong);
  EXPECT_THAT(error_of([&] { model(ids, Tensor(), at::ones({2, 3}, at::kLong)); }), HasSubstr("a mask must be"));
  EXPECT_THAT(error_of([&] { model(ids, Tensor(), at::ones({2, 4})); }), HasSubstr("a mask must be"));
}

}  // namespace
}  // namespace levin::language_folder_tests
