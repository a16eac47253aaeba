// Requests that share a model on CUDA: operator by operator, as graphs, and with the kernels of decoding over blocks.
#include <gtest/gtest.h>

#include "levin/generate/decode_batch.h"
#include "levin/generate/engine.h"
#include "levin/generate/paged_batch.h"
#include "levin/testing/gpu.h"
#include "levin/testing/scoped_variable.h"
#include "tests/generate/longer_model.h"

namespace levin::generate_tests {
namespace {

class EngineGpu : public testing::GpuTest {};

models::Decoder gpu_model(const std::string& name) {
  auto model =
      models::open_model(kTests / "models/fixtures/language" / name, {.dtype = at::kFloat, .device = at::kCUDA})
          .decoder;
  if (model->options.rotary_scaling.type != "dynamic") model->options.max_positions = 80;
  return model;
}

/// A model of heads that the kernels take, with new weights.
models::Decoder wide_model(at::ScalarType dtype, models::DecoderOptions options = {}) {
  options.vocab_size = 512, options.max_positions = 1024, options.num_layers = 3, options.num_heads = 8;
  options.hidden_dim = 512, options.kv_heads = 2;
  auto model = models::decoder(options);
  const at::NoGradGuard no_grad;
  for (auto& parameter : model->parameters())
    if (parameter.dim() > 1) parameter.mul_(4);
  model->to(at::kCUDA, dtype);
  model->eval();
  return model;
}

const models::DecoderOptions kLlama{
    .norm = "rms", .activation = "silu_gated", .positions = "rotary", .tied_head = false};

/// Logits of 20 decode steps of a short and a long row.
at::Tensor decoded(const models::Decoder& model, bool paged, bool graphs, models::CacheDtype dtype) {
  const Ids shorter(7, 3), longer(600, 5);
  std::vector<at::Tensor> logits;
  if (!paged) {
    detail::DecodeBatch batch(model, {.rows = 3, .capacity = 900, .graphs = graphs, .dtype = dtype});
    const std::vector<const Ids*> prompts{&shorter, &longer};
    batch.append(prompts);
    for (int64_t i = 0; i < 20; ++i) logits.push_back(batch.decode(Ids{i, 2 * i}).clone());
    return at::stack(logits);
  }
  detail::PagedBatch batch(model,
                           {.blocks = 200, .block_tokens = 16, .positions = 900, .dtype = dtype, .graphs = graphs});
  std::vector<Ids> ids{shorter, longer}, blocks(2);
  for (int64_t i = 0; i < 2; ++i)  // blocks of the two in turns, backwards
    for (int64_t k = 0; k < 57; ++k) blocks[static_cast<size_t>(i)].push_back(199 - 2 * k - i);
  const auto rows = [&](bool whole) {
    std::vector<detail::PagedRow> all;
    for (size_t i = 0; i < 2; ++i) {
      const auto length = static_cast<int64_t>(ids[i].size());
      all.push_back({&ids[i], whole ? 0 : length - 1, length, &blocks[i], length});
    }
    return all;
  };
  batch.prefill(rows(true));
  for (int64_t i = 0; i < 20; ++i) {
    ids[0].push_back(i), ids[1].push_back(2 * i);
    logits.push_back(batch.decode(rows(false)).clone());
  }
  return at::stack(logits);
}

TEST_F(EngineGpu, TokensAreTransformersTokens) {
  const auto fixtures = fixture();
  for (const std::string name : {"llama", "llama_dynamic", "llama_yarn", "mistral", "gemma2", "bloom", "gpt_neox_odd"})
    for (const bool graphs : {false, true})
      for (const std::string kernels : {"0", "1"}) {
        const testing::ScopedVariable variable("LEVIN_DECODE_KERNELS", kernels);
        const auto rows = generate(gpu_model(name), kPrompts,
                                   {.max_new_tokens = 64, .temperature = 0, .cuda_graphs = graphs, .paged = true});
        for (size_t i = 0; i < rows.size(); ++i)
          EXPECT_EQ(rows[i].ids, fixtures[name]["greedy"][i].get<Ids>()) << name << graphs << kernels;
      }
}

TEST_F(EngineGpu, BlocksGraphsAndKernelsGiveTheLogitsOfOneCache) {
  auto capped = kLlama;
  capped.attention_softcap = 20, capped.window = 100, capped.windowed_layers = {true, false, true};
  models::DecoderOptions alibi{.positions = "alibi"};
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto& options : {kLlama, capped, alibi})
      for (const auto kept : {models::CacheDtype::kAuto, models::CacheDtype::kInt8, models::CacheDtype::kFp8}) {
        const at::NoGradGuard no_grad;
        auto model = wide_model(dtype, options);
        const auto expected = decoded(model, false, false, kept);
        const auto scale = expected.abs().max().item<double>();
        for (const std::string kernels : {"0", "1"}) {
          const testing::ScopedVariable variable("LEVIN_DECODE_KERNELS", kernels);
          for (const bool paged : {false, true}) {
            const auto plain = decoded(model, paged, false, kept), graphs = decoded(model, paged, true, kept);
            // A number that falls between two bytes may become the other one.
            const auto exact = kept == models::CacheDtype::kAuto ? 1e-3 : 1e-2;
            // Three bits: a number that is rounded the other way changes by a sixteenth.
            const auto narrow = kept == models::CacheDtype::kFp8 ? 0.15 : 5e-2;
            const auto bound = (dtype == at::kFloat ? exact : narrow) * scale;
            const auto what = options.positions + " paged " + std::to_string(paged) + " kernels " + kernels + " kept " +
                              std::to_string(static_cast<int>(kept));
            EXPECT_LT((plain - expected).abs().max().item<double>(), bound) << what;
            EXPECT_LT((graphs - expected).abs().max().item<double>(), bound) << what << " graphs";
          }
        }
      }
}

TEST_F(EngineGpu, SixtyFourRequestsGiveWhatTheyGiveAlone) {
  auto model = wide_model(at::kFloat, kLlama);
  for (const std::string kernels : {"0", "1"}) {
    const testing::ScopedVariable variable("LEVIN_DECODE_KERNELS", kernels);
    // Too few blocks for all of them.
    Engine engine(model, nullptr, {.max_rows = 64, .cache_tokens = 1600, .prefill_chunk = 128});
    if (kernels == "1") engine.warm_up(128);
    std::vector<Ids> prompts(64), found(64);
    std::vector<GenerateOptions> options(64);
    for (size_t i = 0; i < 64; ++i) {
      for (size_t k = 0; k < 1 + 7 * i % 90; ++k)
        prompts[i].push_back(static_cast<int64_t>((k * (i % 5 + 3) + k / 9) % 512));
      options[i] = {.max_new_tokens = 24, .temperature = i % 2 ? 0.7 : 0.0, .top_k = 40, .top_p = 0.9, .seed = i};
      engine.submit({.prompt = prompts[i],
                     .options = options[i],
                     .on_done = [&, i](const Generated& row) { found[i] = row.ids; },
                     .on_error = [](const std::string& line) { ADD_FAILURE() << line; }});
    }
    engine.run_until_idle();
    EXPECT_GT(engine.stats().preempted, 0);
    EXPECT_GT(engine.stats().prefix_hit_tokens, 0);
    EXPECT_EQ(engine.stats().blocks_used, 0);
    size_t same = 0;
    for (size_t i = 0; i < 64; ++i) same += found[i] == generate(model, {prompts[i]}, options[i])[0].ids;
    // Products of another number of rows round differently, and a near tie may fall the other way.
    EXPECT_GE(same, 62u) << kernels;
  }
}

}  // namespace
}  // namespace levin::generate_tests
