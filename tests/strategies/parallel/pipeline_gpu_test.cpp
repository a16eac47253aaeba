// Ranks that share one GPU have the stages of a model, over Gloo. The test program itself must not touch CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "levin/models/decoder.h"
#include "levin/strategies/pipeline_parallel.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/training.h"

namespace levin::pipeline_gpu_tests {
namespace {

using namespace levin::testing;

class PipelineGpu : public GpuTest {};

/// Losses of three steps.
std::vector<Tensor> losses(Collective& group, c10::Device device, const PipelineOptions& options) {
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(3);  // torch::manual_seed would start CUDA
  auto model = models::decoder({.vocab_size = 64,
                                .max_positions = 16,
                                .num_layers = 4,
                                .num_heads = 4,
                                .hidden_dim = 32,
                                .norm = "rms",
                                .activation = "silu_gated",
                                .positions = "rotary",
                                .kv_heads = 2});
  const auto ids = torch::randint(0, 64, {8, 16}, torch::kLong).to(device);
  if (group.size() == 1) model->to(device);
  Trainee trainee(group, group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice(options), *model, device);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<Tensor> all;
  for (int step = 0; step < 3; ++step) {
    const auto loss = trainee.step(ids, [&](const Tensor& part) { return model(part, models::next_tokens(part)); });
    optimizer.step();
    clear_grads(model->parameters());
    all.push_back(loss.detach().cpu());
  }
  return all;
}

TEST_F(PipelineGpu, TrainsAsTheCpuDoes) {
  const c10::Device gpu(at::kCUDA, 0);
  RanksOptions options;
  options.device = gpu;
  options.collective.backend = "auto";
  run_ranks(
      2,
      [&](Collective& group) {
        // Not before the ranks: backward starts CUDA, on the CPU too.
        const auto expected = losses(*join_group({}, at::kCPU), at::kCPU, {});
        for (const auto& schedule : pipeline_schedule_names()) {
          const auto got = losses(group, gpu, {.schedule = schedule, .microbatches = 4});
          for (size_t i = 0; i < got.size(); ++i)
            EXPECT_NEAR(got[i].item<double>(), expected[i].item<double>(), 1e-3) << "step " << i << " " << schedule;
        }
      },
      options);
}

}  // namespace
}  // namespace levin::pipeline_gpu_tests
