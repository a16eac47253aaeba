// What a training step takes on one of several ranks, against what was foreseen.
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/memory_counter.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/optim/adam.h"
#include "levin/strategies/memory.h"
#include "levin/strategies/sharding_options.h"
#include "tests/strategies/training.h"

namespace levin {
namespace {

using testing::run_ranks;
using testing::Trainee;

/// Deep and narrow: a unit is a small part of the whole, as in the models that one divides.
models::VisionTransformer deep_vit() {
  return models::vit({.image_size = 32,
                      .patch_size = 8,
                      .num_layers = 16,
                      .num_heads = 4,
                      .hidden_dim = 128,
                      .mlp_dim = 512,
                      .num_classes = 10});
}

Batch images(c10::Device device) {
  return {{"x", torch::zeros({1, 3, 32, 32}, device)},
          {"y", torch::zeros({1}, torch::dtype(at::kLong).device(device))}};
}

struct MemoryCase {
  std::string name;
  StrategyChoice choice;
  StateLayout layout;
  std::string precision = "32-true";
  int world = 2;
  int accumulate = 1;
  bool checkpointed = false;

  friend void PrintTo(const MemoryCase& c, std::ostream* out) {
    *out << c.name << " " << c.precision << " " << c.world;
  }
};

/// The greatest peak of the second and third step, on this rank.
int64_t measure(Collective& group, const MemoryCase& c) {
  at::globalContext().setUserEnabledMkldnn(false);  // a process of its own
  MemoryCounter counter;
  const auto plan = resolve_precision(c.precision, at::kCPU);
  auto model = deep_vit();
  if (plan.params && !make_strategy(c.choice, c.world)->places_modules()) model->to(*plan.params);
  Optimizer optimizer(optim::AdamW(model->parameters(), {.lr = 1e-3}));
  Trainee trainee(group, c.choice, *model, at::kCPU, c.precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  const auto batch = images(at::kCPU);
  int64_t peak = 0;
  for (int step = 0; step < 3; ++step) {
    counter.reset_peak();
    for (int pass = 0; pass < c.accumulate; ++pass) {
      Tensor out = trainee.forward([&] {
        std::optional<Autocast> autocast;
        if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
        return model(plan.inputs ? batch["x"].to(*plan.inputs) : batch["x"]);
      });
      if (plan.outputs) out = out.to(*plan.outputs);
      auto loss = cross_entropy(out, batch["y"]);
      out.reset();
      trainee.backward(loss);
    }
    optimizer.step();
    optimizer.zero_grad();
    if (step > 0) peak = std::max(peak, counter.peak());
  }
  return peak;
}

class MemoryOfRanks : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(MemoryOfRanks, IsForeseen) {
  const auto& c = GetParam();
  const auto results = run_ranks(c.world, [&](Collective& group) { return at::tensor(measure(group, c)); });
  const auto estimate = estimate_memory(
      deep_vit, [](auto& model, const Batch& batch) { return model(batch["x"]); },
      [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["y"]); }, images(at::kMeta),
      {.layout = c.layout,
       .precision = c.precision,
       .optimizer = "adamw",
       .world_size = c.world,
       .device = at::kCPU,
       .accumulate = c.accumulate});
  for (const auto& result : results) {
    const auto measured = static_cast<double>(result.tensor().item<int64_t>());
    const auto ratio = static_cast<double>(estimate.device_peak) / measured;
    if (std::getenv("LEVIN_SHOW_MEMORY"))
      std::cout << c.name << " " << c.precision << " " << c.world << ": predicted " << estimate.device_peak
                << " measured " << measured << " ratio " << ratio << std::endl;
    EXPECT_NEAR(ratio, 1, 0.05) << "predicted " << estimate.device_peak << ", measured " << measured;
  }
}

std::vector<MemoryCase> memory_cases() {
  std::vector<MemoryCase> cases;
  const auto add = [&](const std::string& name, const auto& options, const std::string& precision, int world) {
    cases.push_back({name, options, state_layout(options, world), precision, world});
  };
  const FsdpOptions full{}, grad_op{.sharding_strategy = "grad_op"};
  for (const auto* precision : {"32-true", "bf16-mixed"}) {
    add("fsdp", full, precision, 2);
    add("fsdp_grad_op", grad_op, precision, 2);
    for (const int stage : {1, 2, 3})
      add("zero_" + std::to_string(stage),
          ZeroOptions{.stage = stage, .stage3_param_persistence_threshold = stage == 3 ? 1000 : 0}, precision, 2);
  }
  add("fsdp", full, "bf16-true", 2);
  add("fsdp", full, "bf16-mixed", 4);
  add("zero_2", ZeroOptions{.stage = 2}, "bf16-mixed", 4);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Rungs, MemoryOfRanks, ::testing::ValuesIn(memory_cases()), [](const auto& each) {
  auto name = each.param.name + "_" + each.param.precision + "_" + std::to_string(each.param.world);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace levin
