// Gradients of weights on a second stream of a captured graph are those of eager mode, bit by bit.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "levin/devices/graphs.h"
#include "levin/kernels/later_gradients.h"
#include "levin/kernels/linear.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"

namespace levin::later_gradients_gpu_tests {
namespace {

using at::Tensor;

class LaterGradientsGpu : public levin::testing::GpuTest {};

Tensor leaf(const Tensor& tensor) {
  return tensor.detach().clone().set_requires_grad(true);
}

/// Layers of the sizes, the first ones with an activation.
struct Net {
  std::vector<Tensor> weights, biases;

  Net(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(dtype);
    for (size_t i = 0; i + 1 < sizes.size(); ++i) {
      weights.push_back(leaf(torch::randn({sizes[i + 1], sizes[i]}, options).div_(8)));
      biases.push_back(leaf(torch::randn({sizes[i + 1]}, options)));
    }
  }
  Net(const Net& other) {
    for (const auto& each : other.weights) weights.push_back(leaf(each));
    for (const auto& each : other.biases) biases.push_back(leaf(each));
  }

  /// The gradients, and whether none was there before backward was over.
  bool step(const Tensor& x, int64_t products = 2) const {
    for (const auto* all : {&weights, &biases})
      for (const auto& each : *all) each.mutable_grad().reset();
    auto y = x;
    {
      const Autocast autocast(at::kCUDA, at::kBFloat16);
      for (size_t i = 0; i + 1 < weights.size(); ++i)
        y = kernels::linear_activation(y, weights[i], biases[i], kernels::Activation::kGelu);
      y = kernels::linear(y, weights.back(), biases.back());
    }
    kernels::LaterGradients later(kernels::detail::make_later_queue(x.device(), products));
    y.to(at::kFloat).square().mean().backward();
    const bool came_later = !weights[0].grad().defined();
    later.finish();
    return came_later;
  }

  std::vector<Tensor> gradients() const {
    std::vector<Tensor> result;
    for (const auto* all : {&weights, &biases})
      for (const auto& each : *all) result.push_back(each.grad().clone());
    return result;
  }
};

TEST_F(LaterGradientsGpu, InACapturedGraphAreThoseOfEagerMode) {
  const auto graphs = levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0));
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto& sizes :
         std::vector<std::vector<int64_t>>{{64, 256, 64, 256, 64}, {768, 3072, 768}, {7, 33, 5}, {64, 64}}) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << sizes);
      torch::manual_seed(1);
      const Net eager(sizes, dtype);
      const auto x = torch::randn({4, 197, sizes[0]}, at::TensorOptions(at::kCUDA).dtype(dtype));
      EXPECT_FALSE(eager.step(x));
      const auto right = eager.gradients();
      for (const int64_t products : {0, 1, 2, 8}) {
        const Net compiled(eager);
        bool came_later = false;
        torch::cuda::synchronize();
        const auto graph = graphs->capture([&] { came_later = compiled.step(x, products); });
        EXPECT_EQ(came_later, products > 0);
        for (int i = 0; i < 3; ++i) graph->replay();
        torch::cuda::synchronize();
        const auto mine = compiled.gradients();
        for (size_t i = 0; i < right.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], right[i])) << products << " " << i;
      }
    }
}

TEST_F(LaterGradientsGpu, AFailedBackwardLeavesNothingBehind) {
  const auto graphs = levin::detail::cuda_graphs(c10::Device(at::kCUDA, 0));
  torch::manual_seed(2);
  const Net net({64, 96, 64}, at::kBFloat16), other(net);
  const auto x = torch::randn({50, 64}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16));
  EXPECT_FALSE(other.step(x));
  const auto fails = [&] {
    const auto in = leaf(x);
    in.register_hook([](const Tensor&) { throw std::runtime_error("no"); });
    const kernels::LaterGradients later(kernels::detail::make_later_queue(x.device(), 2));
    kernels::linear(in, net.weights[0], net.biases[0]).sum().backward();
  };
  EXPECT_ANY_THROW(graphs->capture(fails));
  bool came_later = false;
  const auto graph = graphs->capture([&] { came_later = net.step(x); });
  EXPECT_TRUE(came_later);
  graph->replay();
  torch::cuda::synchronize();
  const auto mine = net.gradients(), right = other.gradients();
  for (size_t i = 0; i < right.size(); ++i) EXPECT_TRUE(torch::equal(mine[i], right[i])) << i;
}

}  // namespace
}  // namespace levin::later_gradients_gpu_tests
