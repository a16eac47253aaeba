// Generation on CUDA: the tokens of transformers, operator by operator, as graphs, and with the kernels of decoding.
#include <filesystem>
#include <fstream>

#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/devices/graphs.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/generate_detail.h"
#include "levin/generate/sampler.h"
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

TEST_F(GenerateGpu, IdsOfTheDeviceGiveTheLogitsOfThoseOfTheHost) {
  const at::NoGradGuard no_grad;
  auto model = wide_model(at::kFloat);
  const Ids shorter(7, 3), longer(250, 5);  // 256 slots are passed on the way
  const std::vector<const Ids*> prompts{&shorter, &longer};
  for (const bool graphs : {false, true}) {
    detail::DecodeBatch host(model, {.rows = 3, .capacity = 400, .graphs = graphs}),
        device(model, {.rows = 3, .capacity = 400, .graphs = graphs});
    EXPECT_EQ(host.runs_ahead(), graphs);
    host.append(prompts), device.append(prompts);
    for (int64_t i = 0; i < 16; ++i) {
      const Ids ids{i, 2 * i};
      const auto expected = host.decode(ids).clone();
      EXPECT_TRUE(device.decode(at::tensor(ids, at::kLong).to(at::kCUDA)).equal(expected)) << graphs << i;
    }
  }
}

/// Rows in the order in which their tokens were told, and all results.
struct ToldOnGpu {
  std::vector<std::pair<size_t, int64_t>> tokens;
  std::vector<Generated> results;
};

/// CUDA, which counts uploads.
struct CountedUploads final : detail::GraphDevice {
  c10::Device device() const override { return cuda->device(); }
  std::shared_ptr<detail::DeviceGraph> capture(const std::function<void()>& body) override {
    return cuda->capture(body);
  }
  void upload(const at::Tensor& to, const void* host, size_t bytes) override {
    cuda->upload(to, host, bytes);
    ++uploads;
  }
  at::Tensor alias(const at::Tensor& tensor, std::shared_ptr<detail::DeviceGraph> graph) override {
    return cuda->alias(tensor, std::move(graph));
  }
  void empty_cache() override { cuda->empty_cache(); }

  std::shared_ptr<detail::GraphDevice> cuda = detail::cuda_graphs(c10::Device(at::kCUDA, 0));
  int64_t uploads = 0;
};

std::vector<Generated> greedy_rows(const models::Decoder& model, const GenerateOptions& options,
                                   detail::RunAhead run_ahead,
                                   const std::shared_ptr<detail::GraphDevice>& device = nullptr) {
  const std::vector<Ids> prompts(kGpuPrompts.begin(), kGpuPrompts.begin() + options.batch);
  return detail::generated(model, nullptr, prompts, options, {}, run_ahead, device);
}

void expect_same_rows(const std::vector<Generated>& found, const std::vector<Generated>& expected) {
  for (size_t row = 0; row < expected.size(); ++row) {
    EXPECT_EQ(found[row].ids, expected[row].ids) << row;
    EXPECT_EQ(found[row].finish_reason, expected[row].finish_reason);
    ASSERT_EQ(found[row].logprobs.size(), expected[row].logprobs.size());
    for (size_t k = 0; k < expected[row].logprobs.size(); ++k)
      EXPECT_NEAR(found[row].logprobs[k], expected[row].logprobs[k], 1e-3);
  }
}

// 256 slots are passed on the way: two graphs, each with the upload of its first step.
TEST_F(GenerateGpu, GreedyStepsThatFollowEachOtherGiveTheSameTokens) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t batch : {1, 3}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << batch);
      auto model = wide_model(dtype);
      GenerateOptions options{.max_new_tokens = 300, .temperature = 0, .batch = batch};
      const auto expected = greedy_rows(model, options, detail::RunAhead::kNever);
      const auto device = std::make_shared<CountedUploads>();
      expect_same_rows(greedy_rows(model, options, detail::RunAhead::kWithGraphs, device), expected);
      EXPECT_EQ(device->uploads, 2);
      if (dtype != at::kFloat) continue;  // the last bits of 16 bits depend on how many rows there are
      options.cuda_graphs = false;
      expect_same_rows(greedy_rows(model, options, detail::RunAhead::kNever), expected);
      for (int64_t row = 0; row < std::min<int64_t>(batch, 2); ++row)
        options.eos_token_ids.push_back(expected[static_cast<size_t>(row)].ids[static_cast<size_t>(40 + 100 * row)]);
      const auto ended = greedy_rows(model, options, detail::RunAhead::kNever);
      EXPECT_LE(ended[0].ids.size(), 41u);
      options.cuda_graphs = true;
      expect_same_rows(greedy_rows(model, options, detail::RunAhead::kWithGraphs), ended);
    }
}

ToldOnGpu told_on_gpu(const models::Decoder& model, const GenerateOptions& options, detail::RunAhead run_ahead) {
  const std::vector<Ids> prompts{{7, 3, 11, 42, 5}, {9, 30, 2, 2, 17, 8, 1, 44, 23}, {13}, {4, 4, 6}, {20, 21}};
  ToldOnGpu told;
  told.results = detail::generated(
      model, nullptr, prompts, options,
      [&](const GeneratedToken& token) {
        told.tokens.emplace_back(token.row, token.id);
        return true;
      },
      run_ahead);
  return told;
}

TEST_F(GenerateGpu, StepsThatRunAheadGiveTheSameRows) {
  auto model = wide_model(at::kFloat);
  std::vector<GenerateOptions> asked;
  asked.push_back({.max_new_tokens = 40, .temperature = 0});
  asked.push_back({.max_new_tokens = 40, .temperature = 0, .repetition_penalty = 1.3, .no_repeat_ngram_size = 3});
  asked.push_back({.max_new_tokens = 40, .temperature = 0.9, .top_k = 40, .top_p = 0.9, .seed = 4});
  asked.push_back({.max_new_tokens = 40, .frequency_penalty = 0.3, .seed = 5, .top_logprobs = 2, .batch = 2});
  for (size_t i = 0; i < asked.size(); ++i)
    for (const bool ends : {false, true}) {
      SCOPED_TRACE(::testing::Message() << i << ends);
      auto options = asked[i];
      if (ends)
        for (const auto& row : told_on_gpu(model, asked[i], detail::RunAhead::kNever).results)
          options.eos_token_ids.push_back(row.ids[3 + 5 * row.row]);
      const auto expected = told_on_gpu(model, options, detail::RunAhead::kNever),
                 found = told_on_gpu(model, options, detail::RunAhead::kWithGraphs);
      EXPECT_EQ(found.tokens, expected.tokens);
      for (size_t row = 0; row < expected.results.size(); ++row) {
        EXPECT_EQ(found.results[row].finish_reason, expected.results[row].finish_reason);
        ASSERT_EQ(found.results[row].logprobs.size(), expected.results[row].logprobs.size());
        for (size_t k = 0; k < expected.results[row].logprobs.size(); ++k)
          EXPECT_NEAR(found.results[row].logprobs[k], expected.results[row].logprobs[k], 1e-3);
      }
    }
}

/// Work of half a second on the device, and when it is done.
c10::Event kept_busy() {
  const auto large = at::randn({8192, 8192}, at::TensorOptions().device(at::kCUDA));
  for (int i = 0; i < 20; ++i) at::matmul(large, large);
  c10::Event busy(at::kCUDA);
  busy.record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(large.device()));
  return busy;
}

TEST_F(GenerateGpu, GreedyStepsThatFollowEachOtherDoNotWaitForTheDevice) {
  const at::NoGradGuard no_grad;
  detail::DecodeBatch batch(wide_model(at::kBFloat16), {.rows = 2, .capacity = 100});
  const std::vector<const Ids*> prompts{&kGpuPrompts[0], &kGpuPrompts[1]};
  const GenerateOptions greedy{.temperature = 0};
  std::vector<detail::SampledRow> rows;
  for (size_t i = 0; i < 2; ++i) rows.emplace_back(greedy, kGpuPrompts[i], i);
  const std::vector<const detail::SampledRow*> drawing{&rows[0], &rows[1]};
  auto step = batch.decode_greedy(batch.append(prompts).argmax(1));  // it captures
  for (int turn = 0; turn < 3; ++turn) {                             // the first ones get libraries ready
    c10::Event busy(at::kCUDA);
    if (turn == 2) busy = kept_busy();
    const auto expected = step.logits.argmax(1);
    const auto drawn = detail::draw(step.logits, drawing, nullptr, &step.tokens);
    EXPECT_TRUE(drawn.ids().is_same(step.tokens.ids));
    step = batch.decode_greedy(drawn.ids());
    if (turn == 2) {
      EXPECT_FALSE(busy.query());
    }
    // The step has overwritten the ids, not what is on its way to the host.
    const auto found = drawn.wait();
    detail::check_tokens(found);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(found[i].id, expected[static_cast<int64_t>(i)].item<int64_t>());
      rows[i].push(found[i].id);
    }
  }
}

// Work of half a second is on the device before them: it is not done when they have returned.
TEST_F(GenerateGpu, DrawsAndStepsDoNotWaitForTheDevice) {
  const at::NoGradGuard no_grad;
  auto model = wide_model(at::kBFloat16);
  const GenerateOptions greedy{.temperature = 0},
      drawn{
          .temperature = 0.8, .top_k = 20, .top_p = 0.9, .repetition_penalty = 1.2, .suppress_tokens = {3}, .seed = 2};
  for (const auto* options : {&greedy, &drawn}) {
    detail::DecodeBatch batch(model, {.rows = 2, .capacity = 100});
    const std::vector<const Ids*> prompts{&kGpuPrompts[0], &kGpuPrompts[1]};
    std::vector<detail::SampledRow> rows;
    for (size_t i = 0; i < 2; ++i) rows.emplace_back(*options, kGpuPrompts[i], i);
    const std::vector<const detail::SampledRow*> drawing{&rows[0], &rows[1]};
    auto logits = batch.append(prompts);
    for (int turn = 0; turn < 3; ++turn) {  // the first ones capture the step, and get libraries ready
      c10::Event busy(at::kCUDA);
      if (turn == 2) busy = kept_busy();
      const auto tokens = detail::draw(logits, drawing);
      logits = batch.decode(tokens.ids());
      if (turn == 2) {
        EXPECT_FALSE(busy.query());
      }
      const auto found = tokens.wait();
      detail::check_tokens(found);
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(tokens.ids()[static_cast<int64_t>(i)].item<int64_t>(), found[i].id);
        rows[i].push(found[i].id);
      }
    }
  }
}

}  // namespace
}  // namespace levin::generate_tests
