// Ranks that share one GPU, and the experts of a model, over Gloo. The test program itself must not touch CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "levin/models/decoder.h"
#include "levin/strategies/expert_parallel.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/training.h"

namespace levin::expert_training_gpu_tests {
namespace {

using namespace levin::testing;

class ExpertParallelGpu : public GpuTest {};

/// Losses of three steps, the mean over the ranks.
std::vector<Tensor> losses(Collective& group, c10::Device device, c10::ScalarType dtype) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(3);  // torch::manual_seed would start CUDA
  auto model = models::decoder({.vocab_size = 64,
                                .max_positions = 16,
                                .num_layers = 2,
                                .num_heads = 4,
                                .hidden_dim = 32,
                                .bias = false,
                                .norm = "rms",
                                .activation = "silu_gated",
                                .positions = "rotary",
                                .tied_head = false,
                                .experts = {.count = 4, .per_token = 2, .width = 48},
                                .balance_loss = 0.02});
  const auto ids = torch::randint(0, 64, {4, 16}, torch::kLong).to(device);
  model->to(device, dtype);
  const auto choice = group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice("expert_parallel");
  Trainee trainee(group, choice, *model, device);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    const auto own = ids.chunk(group.size(), 0)[static_cast<size_t>(group.rank())];
    const auto loss = trainee.forward([&] { return model(own, models::next_tokens(own)); });
    trainee.backward(loss);
    optimizer.step();
    clear_grads(model->parameters());
    auto mean = loss.detach().cpu().to(at::kFloat);
    group.all_reduce(mean, ReduceOp::kMean);
    all.push_back(mean);
  }
  return all;
}

TEST_F(ExpertParallelGpu, TrainsAsTheCpuDoes) {
  const c10::Device gpu(at::kCUDA, 0);
  RanksOptions options;
  options.device = gpu;
  options.collective.backend = "auto";
  run_ranks(
      2,
      [&](Collective& group) {
        // Not before the ranks: backward starts CUDA, on the CPU too.
        const auto expected = losses(*join_group({}, at::kCPU), at::kCPU, at::kFloat);
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          const auto got = losses(group, gpu, dtype);
          for (size_t i = 0; i < got.size(); ++i)
            EXPECT_NEAR(got[i].item<double>(), expected[i].item<double>(), dtype == at::kFloat ? 1e-3 : 5e-2)
                << "step " << i;
        }
      },
      options);
}

}  // namespace
}  // namespace levin::expert_training_gpu_tests
