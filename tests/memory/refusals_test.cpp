// An estimate is refused where setup under that strategy would be, in the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/memory/estimate.h"
#include "levin/nn/functional.h"
#include "levin/optim/optim.h"
#include "levin/strategies/fsdp.h"
#include "levin/testing/error_of.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

std::string estimated(const MemoryQuestion& question) {
  const Batch batch{{"x", torch::empty({4, 8})}};
  return error_of([&] {
    (void)estimate_memory([] { return torch::nn::Linear(8, 8); },
                          [](auto& net, const Batch& given) { return net(given["x"]); },
                          [](const Tensor& y, const Batch&) { return y.sum(); }, batch, question);
  });
}

/// Two ranks under the strategy are refused with that very line.
void expect_refused(const std::string& expected, const std::function<std::unique_ptr<Strategy>()>& make,
                    const std::function<Optimizer(torch::nn::Linear&)>& optimizer) {
  testing::run_ranks(2, [&](Collective& group) {
    const auto strategy = make();
    strategy->connect(std::shared_ptr<Collective>(&group, [](Collective*) {}), at::kCPU);
    strategy->set_precision(resolve_precision("32-true", at::kCPU));
    torch::nn::Linear net(8, 8);
    const auto line = testing::error_of([&] {
      const auto sync = strategy->setup_module(*net);
      (void)strategy->setup_optimizer(optimizer(net));
    });
    ASSERT_EQ(line, expected);
  });
}

TEST(MemoryRefusals, AdafactorNeedsFullParameters) {
  const auto line = estimated({.strategy = "fsdp", .optimizer = "adafactor", .world_size = 2});
  EXPECT_THAT(line, HasSubstr("[fsdp] Adafactor steps by figures of full parameters"));
  expect_refused(
      line, [] { return std::make_unique<FsdpStrategy>(FsdpOptions{}); },
      [](torch::nn::Linear& net) -> Optimizer { return optim::Adafactor(net->parameters(), {}); });
  for (const char* strategy : {"deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"})
    EXPECT_THAT(estimated({.strategy = strategy, .optimizer = "adafactor", .world_size = 4}), HasSubstr("Adafactor"));
  EXPECT_EQ(estimated({.strategy = "ddp", .optimizer = "adafactor", .world_size = 2}), "no error");
  EXPECT_EQ(estimated({.strategy = "fsdp", .optimizer = "adafactor", .world_size = 1}), "no error");
}

TEST(MemoryRefusals, LambNeedsNormsOverAllRanks) {
  for (const char* strategy : {"ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_3"})
    EXPECT_EQ(estimated({.strategy = strategy, .optimizer = "lamb", .world_size = 2}), "no error");
  const FsdpOptions options{.optimizer_in_backward = true};
  const auto line =
      estimated({.strategy = "fsdp", .layout = state_layout(options, 2), .optimizer = "lamb", .world_size = 2});
  EXPECT_THAT(line, HasSubstr("[fsdp] Lamb needs norms over the shards of all ranks"));
  expect_refused(
      line, [&] { return std::make_unique<FsdpStrategy>(options); },
      [](torch::nn::Linear& net) -> Optimizer { return optim::Lamb(net->parameters()); });
  EXPECT_EQ(estimated({.strategy = "fsdp", .layout = state_layout(options, 1), .optimizer = "lamb"}), "no error");
}

TEST(MemoryRefusals, TheLossScalerNeedsAllGradients) {
  const auto layout = state_layout(FsdpOptions{.optimizer_in_backward = true}, 2);
  MemoryQuestion question{.layout = layout, .precision = "16-mixed", .world_size = 2};
  EXPECT_THAT(estimated(question), HasSubstr("optimizer_in_backward cannot wait for the loss scaler"));
}

}  // namespace
}  // namespace levin
