// What units are given besides the result of the unit before them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/nn/layers.h"
#include "levin/testing/error_of.h"
#include "tests/strategies/parallel/parallel_training.h"

namespace levin::pipeline_arguments_tests {
namespace {

using namespace levin::testing;
using ::testing::HasSubstr;

struct GatedBlockImpl : torch::nn::Module {
  GatedBlockImpl() { linear = register_module("linear", nn::Linear(6, 6)); }
  Tensor forward(const Tensor& x, const Tensor& gate) { return x + linear(x) * gate.to(x.dtype()); }
  nn::Linear linear = nullptr;
};
LEVIN_MODULE(GatedBlock);

enum class Gate { kFloat, kBool, kRandom };

/// The gate of all blocks behind the first one is a comparison of what that one gives, or drawn at random.
struct GatedNetImpl : torch::nn::Module {
  explicit GatedNetImpl(Gate kind) : kind_(kind) {
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block_" + std::to_string(i), GatedBlock()));
  }
  Tensor forward(const Tensor& input) {
    auto x = blocks[0](input, torch::ones_like(input));
    auto gate = kind_ == Gate::kRandom ? torch::rand_like(input) : x > 0;
    if (kind_ == Gate::kFloat) gate = gate.to(at::kFloat);
    for (size_t i = 1; i < blocks.size(); ++i) x = blocks[i](x, gate);
    return x;
  }
  std::vector<GatedBlock> blocks;

 private:
  Gate kind_;
};
LEVIN_MODULE(GatedNet);

Subject gated(Gate kind) {
  torch::manual_seed(1);
  GatedNet net(kind);
  return {"gated", net.ptr(), [net](const Tensor& x) mutable { return net(x).square().mean(); },
          [](int64_t step) {
            torch::manual_seed(100 + step);
            return torch::randn({8, 6});
          }};
}

std::vector<RankResult> run_gated(Gate kind) {
  return run_ranks(2, [&](Collective& group) { trained(group, gated(kind), PipelineOptions{.microbatches = 4}, 2); },
                   {.errors_expected = true});
}

TEST(PipelineArguments, WhatUnitsDecideByAComparisonIsRefused) {
  EXPECT_THAT(run_gated(Gate::kFloat)[0].error,
              HasSubstr("unit \"block_2\" is given a tensor of Float that the units before it decide"));
  for (const auto& result : run_gated(Gate::kBool))
    EXPECT_THAT(result.error, HasSubstr("given a tensor of Bool that the units before it decide"));
}

TEST(PipelineArguments, WhatIsDrawnAtRandomIsNot) {
  for (const auto& result : run_gated(Gate::kRandom)) EXPECT_EQ(result.error, "");
}

struct NormedNetImpl : torch::nn::Module {
  NormedNetImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    for (int i = 0; i < 4; ++i) blocks.push_back(register_module("block_" + std::to_string(i), GatedBlock()));
  }
  Tensor forward(const Tensor& input) {
    auto x = norm(input);
    for (auto& block : blocks) x = block(x, torch::ones_like(input));
    return x;
  }
  torch::nn::BatchNorm1d norm = nullptr;
  std::vector<GatedBlock> blocks;
};
LEVIN_MODULE(NormedNet);

// What stages are given is found out by a call of its own, which changes nothing.
TEST(PipelineArguments, RunningStatisticsAreThoseOfTheMicroBatches) {
  torch::manual_seed(5);
  const auto rows = torch::randn({8, 6});
  torch::nn::BatchNorm1d expected(6);
  for (const auto& part : rows.tensor_split(4, 0)) expected(part);
  run_ranks(2, [&](Collective& group) {
    torch::manual_seed(1);
    NormedNet net;
    Trainee trainee(group, PipelineOptions{.microbatches = 4}, *net);
    trainee.step(rows, [&](const Tensor& part) { return net(part).square().mean(); });
    if (group.rank() > 0) return;
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 4);
    EXPECT_TRUE(torch::allclose(net->norm->running_mean, expected->running_mean));
  });
}

}  // namespace
}  // namespace levin::pipeline_arguments_tests
