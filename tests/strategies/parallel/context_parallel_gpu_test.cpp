// Ranks that share one GPU have sequences together, over Gloo. The test program itself must not touch CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "levin/models/decoder.h"
#include "levin/strategies/context_parallel.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/training.h"

namespace levin::context_training_gpu_tests {
namespace {

using namespace levin::testing;

class ContextParallelGpu : public GpuTest {};

models::DecoderOptions llama(const std::string& positions) {
  return {.vocab_size = 64,
          .max_positions = 64,
          .num_layers = 2,
          .num_heads = 4,
          .hidden_dim = 64,
          .norm = "rms",
          .activation = "silu_gated",
          .positions = positions,
          .tied_head = false,
          .kv_heads = 2};
}

/// Losses of three steps.
std::vector<Tensor> losses(Collective& group, c10::Device device, const ContextParallelOptions& options,
                           const models::DecoderOptions& model_options, at::ScalarType dtype) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(3);  // torch::manual_seed would start CUDA
  auto model = models::decoder(model_options);
  const auto ids = torch::randint(0, 64, {2, 50}, torch::kLong).to(device);
  model->to(device, dtype);
  Trainee trainee(group, group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice(options), *model, device);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    const auto loss = trainee.forward([&] { return model(ids, models::next_tokens(ids)); });
    trainee.backward(loss);
    optimizer.step();
    clear_grads(model->parameters());
    all.push_back(loss.detach().to(torch::kFloat).cpu());
  }
  return all;
}

TEST_F(ContextParallelGpu, TrainsAsOneRankDoes) {
  const c10::Device gpu(at::kCUDA, 0);
  RanksOptions options;
  options.device = gpu;
  options.collective.backend = "auto";
  auto windowed = llama("rotary");
  windowed.window = 11;
  for (const auto& model : {llama("rotary"), llama("alibi"), windowed}) {
    run_ranks(
        2,
        [&](Collective& group) {
          // Not before the ranks: backward starts CUDA, on the CPU too.
          const auto expected = losses(*join_group({}, at::kCPU), at::kCPU, {}, model, at::kFloat);
          for (const auto rotate : {ContextRotation::kRing, ContextRotation::kAllGather, ContextRotation::kAllToAll})
            for (const auto dtype : {at::kFloat, at::kBFloat16}) {
              const auto got = losses(group, gpu, {.size = 2, .rotate = rotate}, model, dtype);
              for (size_t i = 0; i < got.size(); ++i)
                EXPECT_NEAR(got[i].item<double>(), expected[i].item<double>(), dtype == at::kFloat ? 1e-3 : 5e-2)
                    << "step " << i << " " << model.positions << " " << dtype;
            }
        },
        options);
  }
}

}  // namespace
}  // namespace levin::context_training_gpu_tests
