// Ranks that share one GPU train a model together, over Gloo. The test program itself must not touch CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "levin/models/decoder.h"
#include "levin/strategies/tensor_parallel.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/training.h"

namespace levin::tensor_training_gpu_tests {
namespace {

using namespace levin::testing;

class TensorParallelGpu : public GpuTest {};

/// Losses of three steps.
std::vector<Tensor> losses(Collective& group, c10::Device device, const TensorParallelOptions& options) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(3);  // torch::manual_seed would start CUDA
  auto model = models::decoder({.vocab_size = 64,
                                .max_positions = 16,
                                .num_layers = 2,
                                .num_heads = 4,
                                .hidden_dim = 32,
                                .norm = "rms",
                                .activation = "silu_gated",
                                .positions = "rotary",
                                .tied_head = false,
                                .kv_heads = 2});
  const auto ids = torch::randint(0, 64, {4, 16}, torch::kLong).to(device);
  model->to(device);
  Trainee trainee(group, group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice(options), *model, device);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    const auto loss = trainee.forward([&] { return model(ids, models::next_tokens(ids)); });
    trainee.backward(loss);
    optimizer.step();
    clear_grads(model->parameters());
    all.push_back(loss.detach().cpu());
  }
  return all;
}

TEST_F(TensorParallelGpu, TrainsAsTheCpuDoes) {
  const c10::Device gpu(at::kCUDA, 0);
  RanksOptions options;
  options.device = gpu;
  options.collective.backend = "auto";
  run_ranks(
      2,
      [&](Collective& group) {
        // Not before the ranks: backward starts CUDA, on the CPU too.
        const auto expected = losses(*join_group({}, at::kCPU), at::kCPU, {});
        for (const bool sequence : {false, true}) {
          const auto got = losses(group, gpu, {.size = 2, .sequence_parallel = sequence});
          for (size_t i = 0; i < got.size(); ++i)
            EXPECT_NEAR(got[i].item<double>(), expected[i].item<double>(), 1e-3) << "step " << i << " " << sequence;
        }
      },
      options);
}

}  // namespace
}  // namespace levin::tensor_training_gpu_tests
