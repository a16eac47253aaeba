// Which gradients come when backward is over, and that they are the same.
#include "levin/kernels/later_gradients.h"

#include <thread>

#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/core/error.h"
#include "levin/kernels/linear_detail.h"

namespace levin::later_gradients_tests {
namespace {

using at::Tensor;
using kernels::LaterGradients;

/// Computes at once.
struct CountingQueue : kernels::detail::LaterQueue {
  int runs = 0, waits = 0;
  bool takes(const Tensor& weight) const override { return weight.is_cpu(); }
  void run(std::vector<Tensor>, const std::function<void()>& compute) override {
    ++runs;
    compute();
  }
  void wait() override { ++waits; }
};

struct Layer {
  Tensor weight, bias;
  explicit Layer(int64_t out, int64_t in)
      : weight(torch::randn({out, in}).set_requires_grad(true)), bias(torch::randn({out}).set_requires_grad(true)) {}
  Layer(const Layer& other)
      : weight(other.weight.detach().clone().set_requires_grad(true)),
        bias(other.bias.detach().clone().set_requires_grad(true)) {}
  Tensor operator()(const Tensor& x) const { return kernels::detail::fused_linear(x, weight, bias, weight); }
  Tensor active(const Tensor& x) const {
    return kernels::detail::fused_linear_activation(x, weight, bias, weight, kernels::Activation::kGelu);
  }
};

TEST(LaterGradients, AreThoseOfBackward) {
  torch::manual_seed(1);
  const Layer up(12, 8), down(8, 12), up_2(up), down_2(down);
  const auto x = torch::randn({5, 8});
  // `down` is used twice.
  const auto loss_of = [&](const Layer& a, const Layer& b) { return b(a.active(b(a.active(x)))).square().sum(); };
  loss_of(up_2, down_2).backward();
  const auto queue = std::make_shared<CountingQueue>();
  {
    LaterGradients later(queue);
    loss_of(up, down).backward();
    EXPECT_FALSE(up.weight.grad().defined());
    later.finish();
  }
  EXPECT_EQ(queue->runs, 4);
  EXPECT_EQ(queue->waits, 1);
  for (const auto& [mine, right] : std::vector<std::pair<Tensor, Tensor>>{
           {up.weight, up_2.weight}, {up.bias, up_2.bias}, {down.weight, down_2.weight}, {down.bias, down_2.bias}})
    EXPECT_TRUE(torch::allclose(mine.grad(), right.grad()));
}

TEST(LaterGradients, AddToWhatCameMeanwhile) {
  torch::manual_seed(2);
  const Layer layer(8, 8);
  const auto x = torch::randn({5, 8});
  LaterGradients later(std::make_shared<CountingQueue>());
  (layer(x).sum() + layer.weight.sum()).backward();  // the weight is used by another operator, too
  EXPECT_TRUE(torch::equal(layer.weight.grad(), torch::ones({8, 8})));
  later.finish();
  EXPECT_TRUE(torch::allclose(layer.weight.grad(), 1 + x.sum(0).expand({8, 8})));
  EXPECT_TRUE(torch::equal(layer.bias.grad(), torch::full({8}, 5.f)));
}

TEST(LaterGradients, OnlyWhereNobodyLooks) {
  torch::manual_seed(3);
  const auto x = torch::randn({5, 8});
  const auto runs = [&](const Layer& layer) {
    const auto queue = std::make_shared<CountingQueue>();
    LaterGradients later(queue);
    layer(x).sum().backward();
    later.finish();
    EXPECT_TRUE(layer.weight.grad().defined());
    return queue->runs;
  };
  Layer layer(8, 8);
  EXPECT_EQ(runs(layer), 1);
  EXPECT_EQ(runs(layer), 0);  // it has a gradient, to which autograd adds
  Layer hooked(8, 8);
  int calls = 0;
  hooked.bias.register_hook([&](const Tensor&) { ++calls; });
  EXPECT_EQ(runs(hooked), 0);
  EXPECT_EQ(calls, 1);
  Layer scaled(8, 8);
  const auto half = scaled.weight / 2;  // no leaf
  const auto queue = std::make_shared<CountingQueue>();
  LaterGradients later(queue);
  kernels::detail::fused_linear(x, half, scaled.bias, half).sum().backward();
  later.finish();
  EXPECT_EQ(queue->runs, 0);
}

/// As the threads of torch's engine, which compute a backward on a GPU.
TEST(LaterGradients, AreKnownToTheThreadsOfABackward) {
  const Layer layer(8, 8);
  const auto queue = std::make_shared<CountingQueue>();
  const auto found_with = [&](const at::ThreadLocalState& state) {
    kernels::detail::LaterQueue* found = nullptr;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      found = kernels::detail::later_queue(layer.weight, layer.bias);
    }).join();
    return found;
  };
  EXPECT_EQ(found_with(at::ThreadLocalState()), nullptr);
  const LaterGradients later(queue);
  EXPECT_EQ(found_with(at::ThreadLocalState()), queue.get());
}

TEST(LaterGradients, NothingOutsideOfTheirBackward) {
  torch::manual_seed(4);
  const Layer layer(8, 8), other(8, 8);
  const auto x = torch::randn({5, 8});
  const auto queue = std::make_shared<CountingQueue>();
  {
    const LaterGradients later(queue);
    layer(x).sum().backward();
  }  // as after an exception
  EXPECT_FALSE(layer.weight.grad().defined());
  EXPECT_EQ(queue->waits, 1);
  other(x).sum().backward();
  EXPECT_TRUE(other.weight.grad().defined());
  EXPECT_EQ(queue->runs, 1);
  EXPECT_EQ(kernels::detail::later_products("0"), 0);
  EXPECT_EQ(kernels::detail::later_products("3"), 3);
  for (const auto* word : {"", "9", "on", "-1"}) EXPECT_THROW(kernels::detail::later_products(word), Error) << word;
}

}  // namespace
}  // namespace levin::later_gradients_tests
