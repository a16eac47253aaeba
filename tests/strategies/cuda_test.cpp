#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/testing/gpu.h"
#include "tests/strategies/training.h"

// Several ranks share one GPU here, so everything goes over Gloo. The test program itself must not touch CUDA: its
// forked ranks could not use it any more.
namespace levin::testing {
namespace {

class Cuda : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    options.device = c10::Device(at::kCUDA, 0);
    options.collective.backend = "auto";
  }
  RanksOptions options;
};

TEST_F(Cuda, Collectives) {
  run_ranks(
      2,
      [](Collective& group) {
        const auto r = static_cast<float>(group.rank());
        auto x = at::full({3}, r + 1, at::kCUDA);
        group.all_reduce(x);
        EXPECT_EQ(x[0].item<float>(), 3);
        auto half = at::full({3}, r, at::device(at::kCUDA).dtype(at::kBFloat16));
        group.all_reduce(half, ReduceOp::kMean);
        EXPECT_EQ(half[0].item<float>(), 0.5);
        EXPECT_EQ(group.all_gather(at::full({2}, r, at::kCUDA)).cpu()[1][0].item<float>(), 1);
        EXPECT_EQ(group.reduce_scatter(at::ones({4}, at::kCUDA)).sum().item<float>(), 4);
        auto y = at::full({2}, r, at::kCUDA);
        group.broadcast(y, 1);
        EXPECT_EQ(y[1].item<float>(), 1);
      },
      options);
}

TEST_F(Cuda, DdpEqualsOneProcess) {
  const std::vector<DdpOptions> variants{
      {}, {.find_unused_parameters = true}, {.static_graph = true}, {.comm_hook = "bf16"}, {.sync_batchnorm = true}};
  for (const auto& variant : variants) {
    const auto train = [&](Collective& group) {
      torch::manual_seed(group.rank());
      SmallNet net(variant.sync_batchnorm);
      net->to(at::kCUDA);
      Trainee trainee(group, group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice(variant), *net,
                      at::kCUDA);
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      for (int step = 0; step < 10; ++step) {
        const auto [x, y] = boring_data(16, 32, static_cast<uint64_t>(step));
        const auto own = shard_of(x, group.rank(), group.size()).cuda();
        const auto target = shard_of(y, group.rank(), group.size()).cuda();
        trainee.backward(mse(trainee.forward([&] { return net(own); }), target));
        optimizer.step();
        clear_grads(net->parameters());
      }
      std::vector<Tensor> result;
      for (const auto& parameter : net->parameters()) result.push_back(parameter.detach().cpu());
      return result;
    };
    const auto one = run_ranks(1, train, options), two = run_ranks(2, train, options);
    EXPECT_LT(max_difference(one[0].tensors, two[0].tensors), variant.comm_hook.empty() ? 1e-5 : 1e-2);
    EXPECT_EQ(max_difference(two[0].tensors, two[1].tensors), 0);
  }
}

TEST_F(Cuda, UnusedParameterIsNamed) {
  options.errors_expected = true;
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        SmallNet net;
        net->to(at::kCUDA);
        Trainee trainee(group, "ddp", *net, at::kCUDA);
        const auto x = boring_data(4).first.cuda();
        trainee.backward(trainee.forward([&] { return net->forward(x, group.rank() == 0); }).sum());
      },
      options);
  EXPECT_NE(results[0].error.find("\"b.weight\", \"b.bias\" got no gradient on rank 1"), std::string::npos)
      << results[0].error;
  EXPECT_EQ(results[0].error, results[1].error);
}

}  // namespace
}  // namespace levin::testing
