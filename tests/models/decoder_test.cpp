#include <filesystem>
#include <functional>

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/io/weights/safetensors.h"
#include "levin/io/weights/weights.h"
#include "levin/models/decoder_sizes.h"
#include "levin/models/load_weights.h"
#include "levin/models/naming.h"
#include "levin/models/registry.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/deferred_init.h"
#include "levin/nn/functional.h"
#include "levin/nn/policy.h"
#include "levin/nn/tie.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"

namespace levin::decoder_tests {
namespace {

namespace fs = std::filesystem;
using models::Decoder;
using models::DecoderOptions;
using testing::error_of;
using ::testing::HasSubstr;

const fs::path kFixtures = fs::path(levin::testing::source_dir()) / "tests/models/fixtures/gpt";

DecoderOptions tiny_gpt2() {
  return {.vocab_size = 37, .max_positions = 12, .num_layers = 2, .num_heads = 2, .hidden_dim = 16, .mlp_dim = 24};
}

DecoderOptions tiny_llama() {
  auto options = tiny_gpt2();
  options.bias = options.tied_head = false;
  options.norm = "rms";
  options.activation = "silu_gated";
  options.positions = "rotary";
  return options;
}

std::vector<Tensor> gradients(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const auto& parameter : unique_parameters(module)) result.push_back(parameter.grad().clone());
  return result;
}

void expect_near(const Tensor& found, const Tensor& expected, double tolerance, const std::string& what = "") {
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_LT((found - expected).abs().max().item<double>(), tolerance) << what;
}

/// Outputs and gradients are transformers' for the weights in its own file.
void expect_equals_original(const std::string& name, const DecoderOptions& options) {
  const WeightFile outputs(kFixtures / (name + "_outputs.safetensors"));
  auto model = models::decoder(options);
  const auto report = models::load_weights(*model, kFixtures / (name + ".safetensors"));
  EXPECT_EQ(report.naming, "huggingface");
  const auto tokens = outputs.read("tokens");
  expect_near(model(tokens), outputs.read("logits"), 1e-5);

  model->to(at::kDouble);
  expect_near(model(tokens), outputs.read("logits64"), 1e-6);
  const auto loss = model(tokens, models::next_tokens(tokens));
  EXPECT_EQ(loss.scalar_type(), at::kDouble);
  expect_near(loss.reshape(1), outputs.read("loss64"), 1e-6);
  loss.backward();

  std::vector<std::string> names;
  for (const auto& entry : outputs.entries())
    if (entry.name.starts_with("grad.")) names.push_back(entry.name.substr(5));
  EXPECT_GE(names.size(), 10u);
  const auto parameters = model->named_parameters();
  for (const auto& weight : models::plan_naming(names, "huggingface", "levin")) {
    std::vector<Tensor> parts;
    for (const auto& source : weight.sources) parts.push_back(outputs.read("grad." + source));
    auto expected = torch::cat(parts, 0);
    if (weight.transposed) expected = expected.t();
    expect_near(parameters[weight.name].grad(), expected, 1e-6, weight.name);
  }
  EXPECT_EQ(report.loaded.size(), unique_parameters(*model).size());
}

TEST(Decoder, IsTransformersGpt2) {
  expect_equals_original("gpt2", tiny_gpt2());
}

TEST(Decoder, IsTransformersLlama) {
  expect_equals_original("llama", tiny_llama());
}

TEST(Decoder, WeightsGoToHuggingfaceAndBack) {
  const WeightFile original(kFixtures / "gpt2.safetensors");
  auto model = models::decoder(tiny_gpt2());
  models::load_weights(*model, original.path());
  NamedTensors named;
  std::vector<std::string> names;
  for (const auto& [name, tensor, aliases] : named_unique_parameters(*model)) names.push_back(name);
  EXPECT_GE(names.size(), 10u);
  const auto parameters = model->named_parameters();
  for (const auto& weight : models::plan_naming(names, "levin", "huggingface")) {
    const auto tensor = parameters[weight.sources[0]].detach();
    EXPECT_TRUE(original.read(weight.name).equal(weight.transposed ? tensor.t() : tensor)) << weight.name;
    named.emplace_back(weight.name, weight.transposed ? tensor.t().contiguous() : tensor);
  }
  EXPECT_EQ(named.size(), original.entries().size());

  // As older files have it: no prefix, and masks among the weights.
  for (auto& [name, tensor] : named) name = name.substr(name.find('.') + 1);
  named.emplace_back("h.0.attn.bias", torch::ones({1, 1, 12, 12}));
  const testing::TemporaryFolder folder;
  const auto path = folder / "gpt.safetensors";
  write_safetensors(path, named);
  auto other = models::decoder(tiny_gpt2());
  EXPECT_EQ(models::load_weights(*other, path).naming, "huggingface");
  const auto tokens = torch::randint(0, 37, {2, 12});
  EXPECT_TRUE(other(tokens).equal(model(tokens)));
}

TEST(Decoder, ChunkedLossEqualsTheLoss) {
  const auto x = torch::randn({3, 7, 8}, at::kDouble).requires_grad_();
  const auto weight = torch::randn({11, 8}, at::kDouble).requires_grad_();
  auto targets = torch::randint(0, 11, {3, 7});
  targets[1][2] = models::kIgnoredToken;
  targets[2] = models::kIgnoredToken;
  const auto gradient_of = [&](const Tensor& loss) {
    (loss * 3).backward();
    std::pair result{x.grad().clone(), weight.grad().clone()};
    x.mutable_grad().reset();
    weight.mutable_grad().reset();
    return result;
  };
  const auto plain = cross_entropy(at::linear(x, weight).flatten(0, 1), targets.flatten());
  const auto expected = gradient_of(plain);
  for (const int64_t rows : {0, 1, 5, 7, 100}) {
    SCOPED_TRACE(rows);
    const auto loss = models::linear_cross_entropy(x, weight, targets, rows);
    expect_near(loss, plain, 1e-12);
    const auto [of_x, of_weight] = gradient_of(loss);
    expect_near(of_x, expected.first, 1e-12);
    expect_near(of_weight, expected.second, 1e-12);
  }
}

TEST(Decoder, ChunkedLossKeepsItsGraphAndLeavesFrozenWeightsAlone) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  const auto weight = torch::randn({11, 8});
  const auto targets = torch::randint(0, 11, {5});
  const auto loss = models::linear_cross_entropy(x, weight, targets, 2);
  loss.backward({}, /*retain_graph=*/true);
  const auto once = x.grad().clone();
  loss.backward();
  EXPECT_TRUE(torch::allclose(x.grad(), 2 * once, 1e-5, 1e-7));
  EXPECT_FALSE(weight.grad().defined());
  torch::NoGradGuard no_grad;
  EXPECT_FALSE(models::linear_cross_entropy(x, weight, targets, 2).requires_grad());
}

TEST(Decoder, ChunkedLossRefusesToBeDifferentiatedTwice) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  const auto weight = torch::randn({11, 8}).requires_grad_();
  const auto targets = torch::randint(0, 11, {5});
  const auto gradient = [&](int64_t rows) {
    const auto loss = models::linear_cross_entropy(x, weight, targets, rows);
    return torch::autograd::grad({loss}, {x}, {}, {}, /*create_graph=*/true)[0];
  };
  expect_near(gradient(2), gradient(0), 1e-6);
  EXPECT_TRUE(torch::autograd::grad({gradient(0).square().sum()}, {weight})[0].defined());
  try {
    (void)torch::autograd::grad({gradient(2).square().sum()}, {weight});
    ADD_FAILURE() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("[linear_cross_entropy] the gradient of a chunked loss"));
  }
}

TEST(Decoder, LossOfIgnoredTokensHasNoGradient) {
  const auto x = torch::randn({5, 8}).requires_grad_();
  const auto weight = torch::randn({11, 8}).requires_grad_();
  const auto loss = models::linear_cross_entropy(x, weight, torch::full({5}, models::kIgnoredToken, at::kLong), 2);
  EXPECT_TRUE(loss.isnan().item<bool>());
  loss.backward();
  EXPECT_TRUE(x.grad().equal(torch::zeros({5, 8})));
  EXPECT_TRUE(weight.grad().equal(torch::zeros({11, 8})));
}

TEST(Decoder, DefaultChunksOfTheCpuAreOf1024Rows) {
  const auto weight = torch::randn({11, 8}).requires_grad_();
  const auto x = torch::randn({1500, 8});
  const auto targets = torch::randint(0, 11, {1500});
  const auto gradient = [&](int64_t rows) {
    return torch::autograd::grad({models::linear_cross_entropy(x, weight, targets, rows)}, {weight})[0];
  };
  EXPECT_TRUE(gradient(-1).equal(gradient(1024)));
}

TEST(Decoder, ChunkedLossInBfloat16AndUnderAutocast) {
  const auto x = torch::randn({64, 32}), weight = torch::randn({50, 32}) * 0.1;
  const auto targets = torch::randint(0, 50, {64});
  const auto gradient = [&](at::ScalarType dtype, bool autocast) {
    const auto w = weight.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    const auto loss = models::linear_cross_entropy(x.to(dtype), w, targets, 16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    loss.backward();
    EXPECT_EQ(w.grad().scalar_type(), dtype);
    return w.grad().to(at::kFloat);
  };
  const auto exact = gradient(at::kFloat, false);
  const auto scale = exact.abs().max().item<double>();
  expect_near(gradient(at::kBFloat16, false), exact, 0.02 * scale);
  expect_near(gradient(at::kFloat, true), exact, 0.02 * scale);
}

TEST(Decoder, FullAndChunkedLogitsTrainAlike) {
  for (auto options : {tiny_gpt2(), tiny_llama()}) {
    options.loss_rows = 0;
    torch::manual_seed(3);
    auto whole = models::decoder(options);
    options.loss_rows = 4;
    torch::manual_seed(3);
    auto chunks = models::decoder(options);
    const auto tokens = torch::randint(0, 37, {2, 9});
    whole(tokens, models::next_tokens(tokens)).backward();
    chunks(tokens, models::next_tokens(tokens)).backward();
    const auto a = gradients(*whole), b = gradients(*chunks);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-4, 1e-6));
  }
}

TEST(Decoder, LaterTokensDoNotChangeEarlierOnes) {
  for (const auto& options : {tiny_gpt2(), tiny_llama()}) {
    auto model = models::decoder(options);
    const auto tokens = torch::randint(0, 37, {1, 12});
    auto changed = tokens.clone();
    changed[0][8] = (changed[0][8] + 1) % 37;
    const auto before = model(tokens), after = model(changed);
    EXPECT_TRUE(torch::allclose(before.slice(1, 0, 8), after.slice(1, 0, 8), 1e-5, 1e-6));
    EXPECT_FALSE(torch::allclose(before.slice(1, 8), after.slice(1, 8), 1e-5, 1e-6));
  }
}

TEST(Decoder, DeferredIsWhatItWouldHaveBeen) {
  for (const auto& options : {tiny_gpt2(), tiny_llama()}) {
    torch::manual_seed(5);
    auto eager = models::decoder(options);
    torch::manual_seed(5);
    auto deferred = init_module([&] { return models::decoder(options); }, {.deferred = true});
    EXPECT_TRUE(is_deferred(*deferred));
    EXPECT_EQ(deferred->head->weight.is_same(deferred->tokens->weight), options.tied_head);
    materialize(*deferred->blocks[1]);
    materialize(*deferred);
    const auto expected = eager->named_parameters();
    for (const auto& item : deferred->named_parameters())
      EXPECT_TRUE(item.value().equal(expected[item.key()])) << item.key();
  }
}

TEST(Decoder, SizesAreTheOriginals) {
  const std::map<std::string, int64_t> expected{{"gpt2", 124'439'808},
                                                {"gpt2_medium", 354'823'168},
                                                {"gpt2_large", 774'030'080},
                                                {"gpt2_xl", 1'557'611'200},
                                                {"gpt_6_7b", 6'658'465'792}};
  EXPECT_EQ(models::decoder_names().size(), expected.size());
  for (const auto& name : models::decoder_names()) {
    const auto model = init_module([&] { return models::decoder(models::decoder_options(name)); }, {.deferred = true});
    int64_t count = 0;
    for (const auto& parameter : unique_parameters(*model)) count += parameter.numel();
    EXPECT_EQ(count, expected.at(name)) << name;
  }
}

TEST(Decoder, BlocksAreUnitsAndFire) {
  auto model = models::decoder(tiny_llama());
  const auto units = select_units(*model, policy::by_class<models::DecoderBlock>());
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[1].name, "blocks.1");
  FiredCheck check("fsdp", select_units(*model, policy::all_units()));
  const auto tokens = torch::randint(0, 37, {1, 5});
  model(tokens, tokens);
  check.finish();
}

TEST(Decoder, BlocksThatLeaveTheirSumToTheNextAreBlocksOneByOne) {
  for (auto options : {tiny_gpt2(), tiny_llama()}) {
    options.dropout = options.positions == "learned" ? 0.25 : 0;
    auto model = models::decoder(options);
    const auto tokens = torch::randint(0, 37, {2, 6});
    const auto run = [&](const std::function<Tensor()>& forward) {
      torch::manual_seed(4);
      model->zero_grad();
      auto loss = forward();
      loss.backward();
      auto all = gradients(*model);
      all.push_back(loss.detach());
      return all;
    };
    const auto together = run([&] { return model(tokens).square().mean(); });
    const auto checkpoints = attach_checkpointing(*model, policy::by_class<models::DecoderBlock>());
    const auto alone = run([&] { return model(tokens).square().mean(); });  // each block ends with its sum
    ASSERT_EQ(together.size(), alone.size());
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(together[i].equal(alone[i])) << i;
  }
}

TEST(Decoder, DropoutIsOnlyThereInTraining) {
  auto options = tiny_gpt2();
  options.dropout = options.attention_dropout = 0.5;
  auto model = models::decoder(options);
  const auto tokens = torch::randint(0, 37, {2, 6});
  EXPECT_FALSE(model(tokens).equal(model(tokens)));
  model->eval();
  EXPECT_TRUE(model(tokens).equal(model(tokens)));
}

TEST(Decoder, IsFoundByName) {
  const auto module = init_module([] { return models::make_module("gpt2_medium"); }, {.deferred = true});
  EXPECT_NE(std::dynamic_pointer_cast<models::DecoderImpl>(module), nullptr);
  EXPECT_THAT(models::module_names(), ::testing::IsSupersetOf({"gpt2", "gpt_6_7b", "vit_b_16", "resnet50"}));
  EXPECT_THAT(error_of([] { models::make_module("gpt3"); }), HasSubstr("did you mean \"gpt2\"?"));
  EXPECT_THAT(error_of([] { models::decoder_options("gpt_xl"); }), HasSubstr("did you mean \"gpt2_xl\"?"));
}

TEST(Decoder, MistakesAreOneLine) {
  const auto with = [](auto change) {
    auto options = tiny_gpt2();
    change(options);
    return error_of([&] { models::decoder(options); });
  };
  EXPECT_EQ(with([](auto& o) { o.num_heads = 3; }), "[decoder] hidden_dim 16 is not a multiple of num_heads 3");
  EXPECT_THAT(with([](auto& o) { o.norm = "rmsnorm"; }), HasSubstr("[decoder] norm \"rmsnorm\""));
  EXPECT_THAT(with([](auto& o) { o.activation = "gelu_tan"; }), HasSubstr("did you mean \"gelu_tanh\"?"));
  EXPECT_THAT(with([](auto& o) { o.positions = "rotation"; }), HasSubstr("did you mean \"rotary\"?"));
  EXPECT_EQ(with([](auto& o) {
              o.positions = "rotary";
              o.num_heads = 16;
            }),
            "[decoder] rotary positions need heads of even width, not 1");
  auto model = models::decoder(tiny_gpt2());
  EXPECT_EQ(error_of([&] {
              model(torch::zeros({1, 13}, at::kLong));
            }),
            "[decoder] 13 tokens are more than the 12 of max_positions");
  EXPECT_THAT(error_of([&] { model(torch::zeros({1, 3})); }), HasSubstr("[decoder] tokens must be integers [B, T]"));
  EXPECT_THAT(error_of([&] {
                model(torch::zeros({1, 3}, at::kLong), torch::zeros({1, 2}, at::kLong));
              }),
              HasSubstr("[linear_cross_entropy] needs x [..., D]"));
}

}  // namespace
}  // namespace levin::decoder_tests
