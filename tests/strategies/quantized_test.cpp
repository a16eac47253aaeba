// Quantized weights under strategies: buffers that every rank has whole; adapters are trained as in one process.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/models/lora/lora.h"
#include "levin/testing/paths.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

const std::filesystem::path kModel = std::filesystem::path(source_dir()) / "tests/models/fixtures/quantized/llama";

/// Losses of some steps over the rows of this rank, means over ranks, and the values of the packed weights at the end.
std::vector<Tensor> train_adapters(Collective& group, const StrategyChoice& choice) {
  auto model = models::open_model(kModel, {.quantize = "nf4"});
  torch::manual_seed(4);
  models::add_lora(model, {.rank = 2, .alpha = 4, .target_modules = {"q_proj", "down_proj"}});
  if (group.rank() > 0) {  // rank 0's must win
    const torch::NoGradGuard no_grad;
    for (auto& buffer : model.module().buffers()) buffer.zero_();
    for (auto& parameter : models::lora_parameters(model)) parameter.zero_();
  }
  Trainee trainee(group, choice, model.module());
  torch::optim::AdamW optimizer(models::lora_parameters(model), torch::optim::AdamWOptions(1e-2));
  const auto ids = shard_of((at::arange(4 * 9) * 7 % 45 + 3).view({4, 9}), group.rank(), group.size());
  std::vector<Tensor> results;
  for (int step = 0; step < 5; ++step) {
    const auto loss = trainee.forward([&] { return model.decoder(ids, models::next_tokens(ids)); });
    trainee.backward(loss);
    optimizer.step();
    clear_grads(models::lora_parameters(model));
    auto mean = loss.detach() / group.size();
    group.all_reduce(mean);
    results.push_back(mean);
  }
  for (const auto& buffer : model.module().buffers()) results.push_back(buffer.to(at::kFloat).sum());
  return results;
}

TEST(QuantizedStrategies, TrainAdaptersAsOneProcess) {
  const auto one = run_ranks(1, [](Collective& group) { return train_adapters(group, "single_device"); });
  ASSERT_GT(one[0].tensors.size(), 5u);
  EXPECT_LT(one[0].tensors[4].item<double>(), one[0].tensors[0].item<double>() - 0.05);
  for (const char* choice : {"ddp", "fsdp", "deepspeed_stage_2"}) {
    const auto many = run_ranks(2, [&](Collective& group) { return train_adapters(group, choice); });
    for (const auto& rank : many) EXPECT_LT(max_difference(rank.tensors, one[0].tensors), 1e-4) << choice;
  }
}

}  // namespace
}  // namespace levin::testing
