// Ranks that share one GPU train a model over a mesh, over Gloo. The test program itself must not touch CUDA.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "levin/models/decoder.h"
#include "levin/strategies/model_parallel.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/training.h"

namespace levin::model_parallel_gpu_tests {
namespace {

using namespace levin::testing;

class ModelParallelGpu : public GpuTest {};

/// Losses of four steps, over all ranks, and the norm of the gradients of the last.
std::vector<Tensor> losses(Collective& group, const StrategyChoice& choice, const std::string& precision) {
  const c10::Device gpu(at::kCUDA, 0);
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(3);
  auto model = models::decoder({.vocab_size = 256,
                                .max_positions = 32,
                                .num_layers = 3,
                                .num_heads = 4,
                                .hidden_dim = 128,
                                .norm = "rms",
                                .activation = "silu_gated",
                                .positions = "rotary",
                                .tied_head = false,
                                .kv_heads = 2});
  const auto ids = torch::randint(0, 256, {4, 32}, torch::kLong);
  // Every strategy here takes a module from host memory to its device.
  Trainee trainee(group, choice, *model, gpu, precision);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto place = trainee.strategy().data_place();
  const auto own = ids.chunk(place.size, 0)[static_cast<size_t>(place.rank)].to(gpu);
  std::vector<Tensor> all;
  for (int step = 0; step < 4; ++step) {
    const auto loss = trainee.forward([&] { return model(own, models::next_tokens(own)); });
    trainee.backward(loss);
    auto mean = loss.detach().to(at::kFloat).cpu();
    group.all_reduce(mean, ReduceOp::kMean);
    all.push_back(mean);
    if (step == 3) all.push_back(trainee.strategy().grad_norm(model->parameters(), 2).cpu());
    optimizer.step();
    clear_grads(model->parameters());
  }
  return all;
}

TEST_F(ModelParallelGpu, FsdpOfSplitLayersMatchesOneRank) {
  const c10::Device gpu(at::kCUDA, 0);
  RanksOptions options;
  options.device = gpu;
  for (const auto& [precision, tolerance] : {std::pair{"32-true", 1e-3}, {"bf16-mixed", 3e-2}}) {
    const auto alone = run_ranks(
        1, [&](Collective& group) { return losses(group, FsdpOptions{}, precision); }, options);
    run_ranks(
        4,
        [&, &wanted = alone[0].tensors, &given = precision, &most = tolerance](Collective& group) {
          for (const bool sequence : {false, true}) {
            const auto got = losses(
                group, ModelParallelOptions{.mesh = {.dp_shard = 2, .tp = 2}, .sequence_parallel = sequence}, given);
            ASSERT_EQ(got.size(), wanted.size());
            for (size_t i = 0; i < got.size(); ++i)
              EXPECT_NEAR(got[i].item<double>(), wanted[i].item<double>(),
                          most * std::max(1.0, wanted[i].item<double>()))
                  << given << " " << i << " " << sequence;
          }
        },
        options);
  }
}

}  // namespace
}  // namespace levin::model_parallel_gpu_tests
