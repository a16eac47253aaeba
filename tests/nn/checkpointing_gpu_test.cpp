// Activation checkpointing and offload on a GPU: random numbers of the device, pinned memory, copies beside compute.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <unistd.h>

#include "levin/devices/accelerator.h"
#include "levin/nn/checkpointing/activation_offload.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/layers.h"
#include "levin/nn/unit.h"
#include "levin/precision/precision.h"
#include "levin/testing/gpu.h"

namespace levin {
namespace {

struct GpuBlockImpl : torch::nn::Module {
  explicit GpuBlockImpl(int64_t n) {
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({n})));
    up = register_module("up", nn::Linear(n, 4 * n));
    down = register_module("down", nn::Linear(4 * n, n));
    dropout = register_module("dropout", nn::Dropout(0.3));
  }
  Tensor forward(const Tensor& x) { return x + dropout(down(at::gelu(up(norm(x))))); }
  nn::LayerNorm norm = nullptr;
  nn::Linear up = nullptr, down = nullptr;
  nn::Dropout dropout = nullptr;
};
LEVIN_MODULE(GpuBlock);

struct GpuStackImpl : torch::nn::Module {
  explicit GpuStackImpl(int64_t n = 512, int depth = 8) {
    for (int i = 0; i < depth; ++i) blocks.push_back(register_module("b" + std::to_string(i), GpuBlock(n)));
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<GpuBlock> blocks;
};
LEVIN_MODULE(GpuStack);

const c10::Device kGpu(at::kCUDA, 0);

struct StepResult {
  std::vector<Tensor> values;  // loss, gradient of the input, gradients, state of the generator
  int64_t peak = 0;
};

/// Three steps from the same seed; what the last one gave.
template <class Prepare>
StepResult gpu_step(bool autocast, const Prepare& prepare) {
  torch::manual_seed(1);
  GpuStack net;
  net->to(kGpu);
  prepare(net);
  const auto& device = accelerator_of(kGpu);
  StepResult result;
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(10 + i);
    auto x = at::randn({4096, 512}, kGpu).requires_grad_();
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = Tensor();
    device.synchronize(kGpu);
    device.reset_peak_memory(kGpu);
    Tensor loss;
    {
      std::optional<Autocast> scope;
      if (autocast) scope.emplace(at::kCUDA, at::kBFloat16);
      loss = net(x).to(at::kFloat).square().mean();
    }
    loss.backward();
    device.synchronize(kGpu);
    result.peak = device.memory(kGpu).peak_allocated;
    result.values = {loss.detach(), x.grad()};
    for (const auto& parameter : net->parameters()) result.values.push_back(parameter.grad());
    result.values.push_back(at::globalContext().defaultGenerator(kGpu).get_state());
  }
  return result;
}

class CheckpointingGpu : public levin::testing::GpuTest, public ::testing::WithParamInterface<bool> {
 protected:
  template <class Prepare>
  void expect_same_with_less(const Prepare& prepare, double share = 0.8) {
    const auto plain = gpu_step(GetParam(), [](auto&) {});
    const auto lean = gpu_step(GetParam(), prepare);
    ASSERT_EQ(plain.values.size(), lean.values.size());
    for (size_t i = 0; i < plain.values.size(); ++i) EXPECT_TRUE(at::equal(plain.values[i], lean.values[i])) << i;
    EXPECT_LT(static_cast<double>(lean.peak), static_cast<double>(plain.peak) * share);
    std::printf("[ MEMORY   ] %.0f MB, without %.0f MB\n", static_cast<double>(lean.peak) / 1e6,
                static_cast<double>(plain.peak) / 1e6);
  }
  const UnitPolicy blocks_ = policy::by_class<GpuBlock>();
};

TEST_P(CheckpointingGpu, Full) {
  expect_same_with_less([&](auto& net) { checkpoint_activations(net, blocks_); });
}

TEST_P(CheckpointingGpu, InputsInHostMemory) {
  expect_same_with_less([&](auto& net) { checkpoint_activations(net, blocks_, {.cpu_offload = true}); });
}

TEST_P(CheckpointingGpu, Selective) {
  // The results of products are most of what these blocks keep.
  expect_same_with_less(
      [&](auto& net) {
        checkpoint_activations(net, blocks_, {.keep_results_of = CheckpointOptions::matrix_products()});
      },
      0.95);
}

TEST_P(CheckpointingGpu, ActivationsInHostMemory) {
  expect_same_with_less([&](auto& net) { offload_activations(net, blocks_); });
}

INSTANTIATE_TEST_SUITE_P(Precision, CheckpointingGpu, ::testing::Bool(),
                         [](const auto& instance) { return instance.param ? "bf16_mixed" : "float32"; });

}  // namespace
}  // namespace levin
