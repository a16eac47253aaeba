#include <filesystem>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/core/files.h"
#include "levin/io/weights/weights.h"
#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/models/folder.h"
#include "levin/models/language/quantized_weights.h"
#include "levin/models/lora/lora.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/named_tensors.h"
#include "levin/nn/policy.h"
#include "levin/optim/adam.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/process.h"
#include "levin/testing/python.h"
#include "levin/testing/temporary_folder.h"

namespace levin::quantize_tests {
namespace {

namespace fs = std::filesystem;
using kernels::dequantize;
using kernels::quantization_of;
using kernels::quantize;
using models::LanguageModel;
using models::open_model;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/models/fixtures";
const fs::path kHere = kFixtures / "quantized";

/// As in make_quantize_fixtures.py.
Tensor numbers(std::vector<int64_t> sizes, double scale = 0.05) {
  const auto count = c10::multiply_integers(sizes);
  const auto bits = (at::arange(count, at::kLong) * 2654435761 + 12345).bitwise_and(0xffffffff);
  const auto uniform = at::__rshift__(bits, 8).to(at::kDouble) / 16777216.0 - 0.5;
  return (uniform * uniform * uniform * (8 * scale)).to(at::kFloat).view(sizes);
}

Tensor weight_of_cases() {
  auto weight = numbers({128, 256});
  weight[3].narrow(0, 64, 64).zero_();
  return weight;
}

TEST(Quantize, WeightsAreThoseOfBitsandbytes) {
  const WeightFile file(kHere / "cases.safetensors");
  const auto weight = weight_of_cases();
  const auto plain = quantize(weight, quantization_of("test", "nf4"));
  EXPECT_TRUE(plain.codes.equal(file.read("nf4.codes")));
  EXPECT_TRUE(plain.scales.view(at::kFloat).flatten().equal(file.read("nf4.absmax")));
  EXPECT_TRUE(dequantize(plain, at::kFloat).narrow(0, 0, 5).equal(file.read("nf4.rows")));

  const auto nested = quantize(weight, quantization_of("test", "nf4-double"));
  EXPECT_TRUE(nested.codes.equal(plain.codes));
  // The offset is a mean, whose last bit depends on the order of the sum.
  const auto outer = nested.nested.view(at::kFloat);
  EXPECT_NEAR(outer[0][1].item<double>(), file.read("double.offset").item<double>(), 1e-8);
  EXPECT_TRUE(at::allclose(outer.select(1, 0), file.read("double.nested"), 1e-6, 1e-8));
  const auto steps = nested.scales.flatten().to(at::kInt) - file.read("double.absmax").to(at::kInt);
  EXPECT_LE(steps.count_nonzero().item<int64_t>(), 3);
  EXPECT_LE(steps.abs().max().item<int64_t>(), 1);
  EXPECT_TRUE(at::allclose(dequantize(nested, at::kFloat).narrow(0, 0, 5), file.read("double.rows"), 1e-3, 0));

  const auto eight = quantize(weight.narrow(0, 0, 48), quantization_of("test", "int8"));
  EXPECT_TRUE(eight.codes.view(at::kChar).equal(file.read("int8.codes")));
  EXPECT_TRUE(eight.scales.view(at::kFloat).flatten().equal(file.read("int8.absmax")));
  EXPECT_TRUE(dequantize(eight, at::kFloat).narrow(0, 0, 5).equal(file.read("int8.rows")));
}

TEST(Quantize, Int8MultipliesAsBitsandbytes) {
  const WeightFile file(kHere / "cases.safetensors");
  const auto packed = quantize(weight_of_cases().narrow(0, 0, 48), quantization_of("test", "int8"));
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat})
    for (const auto& [name, rows] : {std::pair{"one", 1}, std::pair{"many", 6}}) {
      auto x = (numbers({rows, 256}, 3) * 2).to(dtype);
      x[0][5] = 7.5;
      x[-1][100] = -9;
      const auto y = kernels::quantized_linear(x, packed, numbers({48}, 1).to(dtype));
      const auto expected = file.read(std::string("int8.") + name + "." + dtype_name(dtype));
      // Outliers alone are multiplied in floating numbers, in any order.
      EXPECT_TRUE(at::allclose(y.to(at::kFloat), expected.to(at::kFloat), dtype == at::kFloat ? 1e-6 : 1e-3,
                               dtype == at::kBFloat16 ? 8e-3 : 1e-4))
          << name << " " << dtype;
    }
}

/// Every buffer and parameter of one is in the other, bit by bit.
void expect_same(const LanguageModel& a, const LanguageModel& b) {
  const auto left = levin::detail::named_tensors(a.module()), right = levin::detail::named_tensors(b.module());
  ASSERT_EQ(left.size(), right.size());
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(left[i].first, right[i].first);
    EXPECT_TRUE(left[i].second.equal(right[i].second)) << left[i].first;
  }
}

TEST(Quantize, ReadsFoldersOfBitsandbytes) {
  for (const char* name : {"nf4", "int8"}) {
    SCOPED_TRACE(name);
    const auto stored = open_model(kHere / name), made = open_model(kHere / "llama", {.quantize = name});
    ASSERT_TRUE(stored.quantization && made.quantization);
    expect_same(stored, made);
    const WeightFile outputs(kHere / name / "outputs.st");
    auto decoder = stored.decoder;
    EXPECT_LT((decoder(outputs.read("ids")) - outputs.read("logits")).abs().max().item<double>(), 2e-4);
    // The weights of the blocks are no parameters.
    EXPECT_EQ(stored.module().parameters().size(), 5u);
    const auto meta = models::open_model_meta(kHere / "llama", {.quantize = name});
    const auto of_meta = levin::detail::named_tensors(meta.module());
    const auto real = levin::detail::named_tensors(stored.module());
    ASSERT_EQ(of_meta.size(), real.size());
    for (size_t i = 0; i < real.size(); ++i) {
      EXPECT_EQ(of_meta[i].second.sizes(), real[i].second.sizes()) << real[i].first;
      EXPECT_EQ(of_meta[i].second.scalar_type(), real[i].second.scalar_type()) << real[i].first;
    }
  }
  EXPECT_EQ(open_model(kHere / "int8", {.quantize = "int8-weights"}).quantization->kind,
            kernels::Quantization::kInt8Weights);
}

/// With int4 the head has 8 bits.
TEST(Quantize, HeadOfInt4) {
  const testing::TemporaryFolder temporary;
  const auto plain = open_model(kHere / "llama");
  auto model = open_model(kHere / "llama", {.quantize = "int4:64"});
  ASSERT_TRUE(model.decoder->head->quantized);
  EXPECT_EQ(model.decoder->head->quantized->options.kind, kernels::Quantization::kInt8Weights);
  const auto head = dequantize(*model.decoder->head->quantized, at::kFloat);
  EXPECT_LT((head - plain.decoder->head->weight).norm().item<double>(),
            0.01 * plain.decoder->head->weight.norm().item<double>());
  EXPECT_FALSE(open_model(kHere / "llama", {.quantize = "nf4"}).decoder->head->quantized);
  // Logits, and a loss without them.
  const auto ids = at::arange(1, 13, at::kLong).view({2, 6}), next = models::next_tokens(ids);
  const auto logits = model.decoder(ids), hidden = model.decoder->hidden_states(ids);
  EXPECT_TRUE(at::allclose(logits, at::linear(hidden, head), 1e-4, 1e-5));
  const auto loss = at::cross_entropy_loss(logits.flatten(0, 1), next.flatten(), {}, at::Reduction::Mean, -100);
  EXPECT_NEAR(model.decoder(ids, next).item<double>(), loss.item<double>(), 1e-5);
  // A folder whose head is not quantized opens as it is.
  auto blocks = open_model(kHere / "llama");
  const auto options = quantization_of("test", "int4:64");
  for (const auto& [name, layer] : models::detail::linear_layers(blocks.module()))
    if (name.starts_with("blocks.")) layer->set_quantized(quantize(layer->weight, options));
  blocks.quantization = options;
  models::save_model(blocks, temporary / "blocks");
  const auto again = open_model(temporary / "blocks");
  EXPECT_FALSE(again.decoder->head->quantized);
  expect_same(blocks, again);
  // One that is the embedding stays.
  auto tied = models::new_model(
      R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 16})");
  models::quantize_model(tied, "int4:64");
  EXPECT_FALSE(tied.decoder->head->quantized);
  EXPECT_TRUE(tied.decoder->head->weight.is_same(tied.decoder->tokens->weight));
}

TEST(Quantize, SavedFoldersOpenAgain) {
  const testing::TemporaryFolder temporary;
  for (const char* name : {"int8", "int8-weights", "int4:64", "nf4", "nf4-double", "fp8"}) {
    SCOPED_TRACE(name);
    auto model = open_model(kHere / "llama", {.quantize = name});
    models::save_model(model, temporary / name);
    auto again = open_model(temporary / name);
    EXPECT_EQ(kernels::quantization_name(*again.quantization), kernels::quantization_name(*model.quantization));
    expect_same(model, again);
    EXPECT_THAT(error_of([&] { open_model(temporary / name, {.quantize = "int4"}); }), HasSubstr("already"));
  }
  // Heads side by side (BLOOM), transposed matrices (GPT-2): new models of a width that has groups.
  for (const std::string json :
       {R"({"model_type": "bloom", "vocab_size": 40, "hidden_size": 64, "n_layer": 1, "n_head": 4})",
        R"({"model_type": "gpt2", "vocab_size": 40, "n_embd": 64, "n_layer": 1, "n_head": 4, "n_positions": 16})"})
    for (const char* name : {"nf4", "nf4-double", "int8", "fp8"}) {
      SCOPED_TRACE(json + name);
      auto model = models::new_model(json);
      models::save_model(model, temporary / "plain", {.overwrite = true});
      auto quantized = open_model(temporary / "plain", {.quantize = name});
      models::quantize_model(model, name);
      model.module().eval();
      expect_same(model, quantized);
      models::save_model(model, temporary / "packed", {.overwrite = true});
      const auto ids = at::arange(9).unsqueeze(0);
      EXPECT_TRUE(open_model(temporary / "packed").decoder(ids).equal(model.decoder(ids)));
    }
}

TEST(Quantize, TransformersReadsWhatWasSaved) {
  const auto python = testing::python_with("bitsandbytes, peft, transformers, safetensors");
  if (!python) GTEST_SKIP() << "no Python with bitsandbytes and transformers (LEVIN_PEER_PYTHON names one)";
  const testing::TemporaryFolder temporary;
  std::vector<std::string> command{*python, (kHere / "../../make_quantize_fixtures.py").lexically_normal().string()};
  for (const char* name : {"nf4", "nf4-double", "int8"}) {
    auto model = open_model(kHere / "llama", {.quantize = name});
    models::save_model(model, temporary / name);
    const auto ids = at::arange(3, 20).unsqueeze(0);
    write_safetensors(temporary / name / "outputs.safetensors",
                      {{"ids", ids}, {"logits", model.decoder(ids).detach()}});
    command.push_back((temporary / name).string());
  }
  const auto ran = testing::run_program(command);
  EXPECT_EQ(ran.status, 0) << ran.text();
  EXPECT_THAT(ran.text(), HasSubstr("3 folders: equal"));
}

TEST(Quantize, QloraTrainsAsPeft) {
  const WeightFile file(kHere / "qlora.safetensors");
  const auto ids = file.read("ids"), losses = file.read("losses");
  auto model = open_model(kHere / "llama", {.quantize = "nf4"});
  models::load_lora(model, kHere / "adapter");
  model.module().train();
  optim::AdamW opt(models::lora_parameters(model), {.lr = 3e-3, .weight_decay = 0.01});
  for (int64_t step = 0; step < losses.numel(); ++step) {
    const auto loss = model.decoder(ids, models::next_tokens(ids));
    EXPECT_NEAR(loss.item<double>(), losses[step].item<double>(), 1e-4) << step;
    opt.zero_grad();
    loss.backward();
    opt.step();
  }
  EXPECT_LT(losses[-1].item<double>(), losses[0].item<double>() - 0.5);
  for (const auto& module : model.module().modules())
    if (const auto* adapter = dynamic_cast<models::LowRankImpl*>(module.get())) {
      const auto b = file.read("base_model.model." + adapter->module_name + ".lora_B.weight");
      EXPECT_LT((adapter->b - b).abs().max().item<double>(), 1e-3) << adapter->module_name;
    }
  EXPECT_THAT(error_of([&] { models::merge_lora(model); }), HasSubstr("open the model without quantize"));
  const testing::TemporaryFolder temporary;
  models::save_lora(model, temporary / "adapter");
  auto again = open_model(kHere / "llama", {.quantize = "nf4"});
  models::load_lora(again, temporary / "adapter");
  model.module().eval();
  EXPECT_TRUE(again.decoder(ids).equal(model.decoder(ids)));
}

TEST(Quantize, CheckpointingAndCastsChangeNothing) {
  const auto ids = at::arange(3, 23).view({2, 10});
  const auto gradients = [&](bool checkpointed) {
    auto model = open_model(kHere / "llama", {.quantize = "nf4-double"});
    at::manual_seed(1);
    models::add_lora(model, {.rank = 2});
    if (checkpointed) checkpoint_activations(model.decoder, policy::by_class<models::DecoderBlock>());
    model.decoder(ids, models::next_tokens(ids)).backward();
    std::vector<Tensor> result;
    for (const auto& parameter : models::lora_parameters(model)) result.push_back(parameter.grad());
    return result;
  };
  const auto plain = gradients(false), again = gradients(true);
  ASSERT_EQ(plain.size(), 14u);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(plain[i].equal(again[i])) << i;

  // Packed weights are bytes: a precision that casts floating buffers leaves them as they are.
  auto model = open_model(kHere / "llama", {.dtype = at::kBFloat16, .quantize = "fp8"});
  for (const auto& buffer : model.module().buffers()) EXPECT_EQ(buffer.scalar_type(), at::kByte);
  EXPECT_EQ(model.decoder(ids).scalar_type(), at::kBFloat16);
}

TEST(Quantize, WhatIsNotKnownIsRefused) {
  const testing::TemporaryFolder temporary;
  const auto folder = temporary / "folder";
  fs::copy(kHere / "nf4", folder);
  const auto config = read_file(folder / "config.json");
  const auto refused = [&](const std::string& json) {
    write_file(folder / "config.json", models::ModelConfig(config, "x").with({{"quantization_config", json}}));
    return error_of([&] { open_model(folder); });
  };
  EXPECT_THAT(refused(R"({"quant_method": "gptq", "bits": 4})"), HasSubstr("\"gptq\" is not supported"));
  EXPECT_THAT(refused(R"({"load_in_4bit": true, "bnb_4bit_quant_type": "fp4"})"), HasSubstr("NF4 only"));
  EXPECT_THAT(refused(R"({"quant_method": "levin", "format": "int3"})"), HasSubstr("int3"));
  EXPECT_THAT(refused(R"({"load_in_8bit": true})"), HasSubstr("numbers of int8"));
  EXPECT_THAT(refused("3"), HasSubstr("is not an object"));
  write_file(folder / "config.json", models::ModelConfig(config, "x").with({{"quantization_config", ""}}));
  EXPECT_THAT(error_of([&] { open_model(folder); }), HasSubstr("does not fit"));
  EXPECT_THAT(error_of([&] { open_model(kHere / "llama", {.quantize = "int4"}); }), HasSubstr("groups of 128"));
  EXPECT_THAT(error_of([&] { open_model(kHere / "llama", {.quantize = "nf"}); }), HasSubstr("nf4"));
}

}  // namespace
}  // namespace levin::quantize_tests
