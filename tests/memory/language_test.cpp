// Adapters over frozen and quantized weights: what a step will take, against what it takes.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "levin/devices/memory_counter.h"
#include "levin/memory/estimate.h"
#include "levin/models/lora/lora.h"
#include "levin/optim/adam.h"

namespace levin {
namespace {

constexpr const char* kConfig =
    R"({"model_type": "llama", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 256, "max_position_embeddings": 128, "tie_word_embeddings": false})";

models::LanguageModel adapted(const std::string& quantize, c10::Device device) {
  auto model = models::new_model(kConfig, {.device = device, .quantize = quantize});
  models::add_lora(model, {.rank = 4});
  return model;
}

int64_t predicted_peak(const std::string& quantize, int64_t batch, int64_t length) {
  const auto tokens = at::TensorOptions(at::kMeta).dtype(at::kLong);
  const Batch given{{"tokens", at::empty({batch, length}, tokens)}, {"targets", at::empty({batch, length}, tokens)}};
  return estimate_memory([&] { return adapted(quantize, at::kMeta).decoder; },
                         [](auto& model, const Batch& b) { return model(b["tokens"], b["targets"]); },
                         [](const Tensor& loss, const Batch&) { return loss; }, given,
                         {.optimizer = "adam", .device = at::kCPU})
      .device_peak;
}

/// Of the second step.
int64_t measured_peak(const std::string& quantize, int64_t batch, int64_t length) {
  MemoryCounter counter;
  auto model = adapted(quantize, at::kCPU);
  model.module().train();
  const auto tokens = at::randint(0, 512, {batch, length}, at::kLong), targets = at::roll(tokens, -1, 1);
  Optimizer optimizer(optim::Adam(models::lora_parameters(model), {}));
  for (int step = 0; step < 2; ++step) {
    counter.reset_peak();
    model.decoder(tokens, targets).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return counter.peak();
}

TEST(MemoryOfAdapters, IsPredictedWithAndWithoutQuantizedWeights) {
  const bool before = at::globalContext().userEnabledMkldnn();
  at::globalContext().setUserEnabledMkldnn(false);  // its scratch is another on each machine
  for (const char* quantize : {"", "nf4", "int8-weights"}) {
    SCOPED_TRACE(quantize);
    const auto predicted = predicted_peak(quantize, 4, 64), measured = measured_peak(quantize, 4, 64);
    EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(measured), 1.0, 0.05)
        << "predicted " << predicted << ", measured " << measured;
  }
  at::globalContext().setUserEnabledMkldnn(before);
}

}  // namespace
}  // namespace levin
