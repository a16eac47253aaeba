// The first pass of a strategy adds the ranks up in the order of all later ones: a run that resumes anywhere, and whose
// strategy begins again, then has the bits of the run that was not disturbed. On 2 ranks the order cannot matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/testing/error_of.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

/// Layers are registered in another order than they run in, one of them is used twice, and sizes do not divide by the
/// ranks.
struct CrossedNetImpl : torch::nn::Module {
  CrossedNetImpl() {
    last = register_module("last", torch::nn::Linear(17, 3));
    first = register_module("first", torch::nn::Linear(32, 19));
    twice = register_module("twice", torch::nn::Linear(19, 19));
    middle = register_module("middle", torch::nn::Linear(19, 17));
  }
  Tensor forward(const Tensor& x) {
    auto h = torch::tanh(first(x));
    h = torch::tanh(twice(torch::tanh(twice(h))));
    return last(torch::tanh(middle(h)));
  }
  torch::nn::Linear last{nullptr}, first{nullptr}, twice{nullptr}, middle{nullptr};
};
TORCH_MODULE(CrossedNet);

struct Case {
  const char* name;
  StrategyChoice choice;
  int accumulate = 1;
  std::vector<int> worlds = {3, 4};

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

class FirstPass : public ::testing::TestWithParam<Case> {};

TEST_P(FirstPass, AddsAsLaterOnesDo) {
  const auto& c = GetParam();
  for (const int world : c.worlds)
    run_ranks(world, [&](Collective& group) {
      torch::manual_seed(1);
      CrossedNet net;
      Trainee trainee(group, c.choice, *net);
      const auto parameters = net->parameters();
      std::vector<std::vector<Tensor>> passes;
      for (int pass = 0; pass < 3; ++pass) {
        for (int micro = 0; micro < c.accumulate; ++micro) {
          const auto [x, y] = boring_data(5, 32, static_cast<uint64_t>(10 * micro + group.rank()));
          trainee.set_sync(micro + 1 == c.accumulate);
          trainee.backward(trainee.forward([&, x = x] { return net(x); }).pow(2).mean());
        }
        auto& grads = passes.emplace_back();
        for (const auto& parameter : parameters)
          if (parameter.grad().defined()) grads.push_back(parameter.grad().detach().clone());
        clear_grads(parameters);
      }
      EXPECT_FALSE(passes[0].empty());
      for (size_t pass = 1; pass < passes.size(); ++pass)
        EXPECT_EQ(max_difference(passes[pass], passes[0]), 0) << "pass " << pass << " of " << world << " ranks";
    });
}

INSTANTIATE_TEST_SUITE_P(
    Strategies, FirstPass,
    ::testing::Values(Case{"ddp", "ddp"}, Case{"ddp_accumulation", "ddp", 3},
                      Case{"ddp_small_buckets", DdpOptions{.bucket_cap_mb = 0.001}},
                      Case{"ddp_no_views", DdpOptions{.gradient_as_bucket_view = false}, 1, {3}},
                      Case{"ddp_bf16_hook", DdpOptions{.comm_hook = "bf16"}, 1, {3}},
                      Case{"ddp_static_graph", "ddp_static_graph"},
                      Case{"ddp_find_unused", "ddp_find_unused_parameters_true"}, Case{"fsdp", "fsdp"},
                      Case{"fsdp_accumulation", "fsdp", 2, {3}},
                      Case{"fsdp_none", FsdpOptions{.sharding_strategy = "none"}, 1, {3}},
                      Case{"fsdp_hybrid", FsdpOptions{.sharding_strategy = "hybrid", .hybrid_size = 2}, 1, {4}},
                      Case{"stage_1", "deepspeed_stage_1"}, Case{"stage_2", "deepspeed_stage_2"},
                      Case{"stage_3", "deepspeed_stage_3"}, Case{"colossalai", "colossalai", 1, {3}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace levin::testing
