// Ranks with different numbers of steps: gradients are what torch's join computes.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "levin/strategies/ddp.h"
#include "levin/testing/ranks.h"

namespace levin {
namespace {

using testing::run_ranks;

/// w of y = w x after rank 0 has made 3 steps with x = 1 and rank 1 one step with x = 3, at a learning rate of 1.
std::string weight_after(bool divide_by_initial_world_size, bool find_unused) {
  const auto results = run_ranks(2, [&](Collective& ranks) -> std::string {
    DdpStrategy strategy({.find_unused_parameters = find_unused});
    strategy.connect(std::shared_ptr<Collective>(&ranks, [](Collective*) {}), at::kCPU);
    torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
    {
      at::NoGradGuard no_grad;
      net->weight.zero_();
    }
    const auto sync = strategy.setup_module(*net);
    sync->uneven_inputs()->begin(divide_by_initial_world_size);
    for (int step = 0; step < (ranks.rank() == 0 ? 3 : 1); ++step) {
      net->zero_grad();
      sync->before_forward();
      std::vector<Tensor> outputs{net(at::full({1, 1}, ranks.rank() == 0 ? 1.0f : 3.0f))};
      sync->leave_forward();
      sync->after_forward(outputs);
      const auto loss = outputs[0].sum();
      ModuleSync* const syncs[] = {sync.get()};
      run_backward(syncs, loss, [&] { loss.backward(); });
      at::NoGradGuard no_grad;
      net->weight.sub_(net->weight.grad());
    }
    sync->uneven_inputs()->end();
    return std::to_string(net->weight.item<float>());
  });
  EXPECT_EQ(results[0].text, results[1].text);
  return results[0].text;
}

TEST(DdpJoin, DividesByAllRanks) {
  EXPECT_EQ(weight_after(true, false), "-3.000000");  // (1 + 3) / 2, then twice 1 / 2
  EXPECT_EQ(weight_after(true, true), "-3.000000");
}

TEST(DdpJoin, DividesByRanksThatStillStep) {
  EXPECT_EQ(weight_after(false, false), "-4.000000");  // (1 + 3) / 2, then twice 1 / 1
}

}  // namespace
}  // namespace levin
