// What a training step takes on one of several ranks, against what was predicted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "levin/core/error.h"
#include "levin/devices/memory_counter.h"
#include "levin/distributed/single.h"
#include "levin/memory/estimate.h"
#include "levin/models/vit.h"
#include "levin/nn/functional.h"
#include "levin/optim/adam.h"
#include "levin/strategies/options.h"
#include "tests/strategies/training.h"

namespace levin {
namespace {

using testing::run_ranks;
using testing::Trainee;

struct MemoryCase {
  std::string name;
  StrategyChoice choice;
  StateLayout layout;
  std::string precision = "32-true";
  int world = 2;
  int accumulate = 1;
  /// Sixteen small blocks in place of four large ones: what is gathered matters less.
  bool deep = false;
  int64_t batch = 1;

  friend void PrintTo(const MemoryCase& c, std::ostream* out) {
    *out << c.name << " " << c.precision << " over " << c.world;
  }
};

models::VisionTransformer make_vit(bool deep) {
  return models::vit({.image_size = 32,
                      .patch_size = 8,
                      .num_layers = deep ? 16 : 4,
                      .num_heads = 4,
                      .hidden_dim = deep ? 128 : 256,
                      .mlp_dim = deep ? 512 : 1024,
                      .num_classes = 10});
}

Batch images(c10::Device device, int64_t count = 1) {
  return {{"x", torch::zeros({count, 3, 32, 32}, device)},
          {"y", torch::zeros({count}, torch::dtype(at::kLong).device(device))}};
}

/// The greatest peak of the second and third step, on this rank.
int64_t measure(Collective& group, const MemoryCase& c) {
  at::globalContext().setUserEnabledMkldnn(false);  // in a process of its own; it takes scratch in 16 bits
  MemoryCounter counter;
  const auto plan = resolve_precision(c.precision, at::kCPU);
  auto model = make_vit(c.deep);
  if (plan.params && !make_strategy(c.choice, c.world)->traits().places_modules) model->to(*plan.params);
  Optimizer optimizer(optim::AdamW(model->parameters(), {.lr = 1e-3}));
  Trainee trainee(group, c.choice, *model, at::kCPU, c.precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  const auto batch = images(at::kCPU, c.batch);
  int64_t peak = 0;
  for (int step = 0; step < 3; ++step) {
    counter.reset_peak();
    for (int pass = 0; pass < c.accumulate; ++pass) {
      trainee.set_sync(pass + 1 == c.accumulate);
      Tensor out = trainee.forward([&] {
        std::optional<Autocast> autocast;
        if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
        return model(plan.inputs ? batch["x"].to(*plan.inputs) : batch["x"]);
      });
      if (plan.outputs) out = out.to(*plan.outputs);
      const auto loss = cross_entropy(std::exchange(out, Tensor()), batch["y"]);
      trainee.backward(loss);
    }
    optimizer.step();
    optimizer.zero_grad();
    if (step > 0) peak = std::max(peak, counter.peak());
  }
  return peak;
}

class MemoryOfRanks : public ::testing::TestWithParam<MemoryCase> {};

TEST_P(MemoryOfRanks, MatchesPrediction) {
  const auto& c = GetParam();
  const auto results = run_ranks(c.world, [&](Collective& group) { return at::tensor(measure(group, c)); });
  const auto estimate = estimate_memory(
      [&] { return make_vit(c.deep); }, [](auto& model, const Batch& batch) { return model(batch["x"]); },
      [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["y"]); },
      images(at::kMeta, c.batch),
      {.layout = c.layout,
       .precision = c.precision,
       .optimizer = "adamw",
       .world_size = c.world,
       .device = at::kCPU,
       .accumulate = c.accumulate});
  const auto predicted = static_cast<double>(estimate.total_peak);  // here the host is the device
  // Predicted is that each of Gloo's two threads has a unit in its buffer at the highest moment. They may be done
  // before.
  const int64_t width = c.deep ? 128 : 256;
  const bool gathers = c.world > 1 && !c.name.starts_with("tp");
  const double unit = 13 * width * width * (c.precision == "32-true" ? 4 : 2) / (c.name.ends_with("tp2") ? 2 : 1);
  const double gloo = gathers ? 2 * unit : 0;
  for (const auto& result : results) {
    const auto measured = static_cast<double>(result.tensor().item<int64_t>());
    if (std::getenv("LEVIN_SHOW_MEMORY"))
      fmt::print("{} {} over {}{}: predicted {:.2f} MB, measured {:.2f} MB, {:.4f}\n", c.name, c.precision, c.world,
                 c.deep ? " deep" : "", predicted / 1e6, measured / 1e6, predicted / measured);
    EXPECT_LT(measured, predicted * 1.05) << "predicted " << predicted;
    EXPECT_GT(measured + gloo, predicted * 0.95) << "predicted " << predicted;
  }
}

std::vector<MemoryCase> memory_cases() {
  std::vector<MemoryCase> cases;
  const auto add = [&](const std::string& name, const auto& options, const std::string& precision, int world) {
    cases.push_back({name, options, state_layout(options, world), precision, world});
    return &cases.back();
  };
  const FsdpOptions full{}, grad_op{.sharding_strategy = "grad_op"};
  for (const auto* precision : {"32-true", "bf16-mixed"}) {
    add("fsdp", full, precision, 2);
    add("fsdp_grad_op", grad_op, precision, 2)->deep = true;
    for (const int stage : {1, 2, 3}) add("zero_" + std::to_string(stage), ZeroOptions{.stage = stage}, precision, 2);
  }
  add("fsdp", full, "bf16-true", 2);
  add("fsdp", full, "bf16-mixed", 4);
  add("zero_2", ZeroOptions{.stage = 2}, "bf16-mixed", 4);
  add("fsdp_deep", full, "32-true", 2)->deep = true;
  add("zero_3_deep", ZeroOptions{.stage = 3, .stage3_param_persistence_threshold = 1000}, "32-true", 2)->deep = true;
  add("fsdp", full, "bf16-mixed", 1);
  for (const auto* precision : {"32-true", "bf16-mixed"})
    add("fsdp_none", FsdpOptions{.sharding_strategy = "none"}, precision, 2);
  add("fsdp_hybrid", FsdpOptions{.sharding_strategy = "hybrid", .hybrid_size = 2}, "32-true", 4);
  add("fsdp_in_backward", FsdpOptions{.optimizer_in_backward = true}, "32-true", 1);
  add("fsdp_in_backward", FsdpOptions{.optimizer_in_backward = true}, "32-true", 2);
  add("fsdp_offload", FsdpOptions{.cpu_offload = true}, "bf16-mixed", 2);
  add("zero_2_offload", ZeroOptions{.stage = 2, .offload_optimizer = {.device = "cpu"}}, "bf16-mixed", 2);
  add("fsdp_accumulated", full, "32-true", 2)->accumulate = 2;
  add("zero_2_accumulated", ZeroOptions{.stage = 2}, "32-true", 2)->accumulate = 2;
  const auto blocks = policy::by_class<models::EncoderBlock>();
  add("fsdp_checkpointing", FsdpOptions{.auto_wrap_policy = blocks, .activation_checkpointing_policy = blocks},
      "32-true", 2)
      ->batch = 16;
  add("zero_3_checkpointing",
      ZeroOptions{.stage = 3, .auto_wrap_policy = blocks, .activation_checkpointing_policy = blocks}, "bf16-mixed", 2)
      ->batch = 16;
  for (const auto* placement : {"cuda", "cpu", "auto"}) {
    add(std::string("colossalai_") + placement, GeminiOptions{.placement_policy = placement}, "bf16-mixed", 2);
    add(std::string("colossalai_chunks_") + placement,
        GeminiOptions{.placement_policy = placement, .chunk_size = 400'000}, "bf16-mixed", 2);
  }
  // What ranks send of activations counts more, the larger they are beside the state.
  add("tp", TensorParallelOptions{}, "32-true", 2)->batch = 16;
  add("tp", TensorParallelOptions{}, "bf16-mixed", 4);
  add("tp_copies", TensorParallelOptions{.size = 2}, "32-true", 4)->batch = 16;
  const ModelParallelOptions fsdp_tp{.mesh = {.dp_shard = 2, .tp = 2}};
  add("shard2_tp2", fsdp_tp, "32-true", 4)->batch = 16;
  add("shard2_tp2", fsdp_tp, "bf16-mixed", 4);
  add("replicate2_tp2", ModelParallelOptions{.mesh = {.dp_replicate = 2, .tp = 2}}, "32-true", 4);
  auto checkpointed = fsdp_tp;
  checkpointed.fsdp = {.auto_wrap_policy = blocks, .activation_checkpointing_policy = blocks};
  add("checkpointing_shard2_tp2", checkpointed, "32-true", 4)->batch = 16;
  for (const auto* precision : {"32-true", "bf16-mixed"})
    cases.push_back({"ddp", DdpOptions{}, state_layout("ddp", 2), precision, 2});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Rungs, MemoryOfRanks, ::testing::ValuesIn(memory_cases()), [](const auto& each) {
  auto name = each.param.name + "_" + each.param.precision + "_" + std::to_string(each.param.world);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(MemoryOfStrategies, IsThatOfTheirNames) {
  run_ranks(2, [](Collective& group) {
    const auto forward = [](auto& model, const Batch& batch) { return model(batch["x"]); };
    const auto loss = [](const Tensor& logits, const Batch& batch) { return cross_entropy(logits, batch["y"]); };
    const auto make = [] { return make_vit(false); };
    for (const auto* name : {"ddp", "fsdp", "deepspeed_stage_1", "deepspeed_stage_2", "deepspeed_stage_2_offload",
                             "deepspeed_stage_3", "deepspeed_stage_3_offload", "colossalai"}) {
      SCOPED_TRACE(name);
      const auto strategy = make_strategy(name, 2);
      strategy->connect({&group, [](auto*) {}}, at::kCPU);
      const auto by_strategy =
          strategy->estimate(make, forward, loss, images(at::kMeta), MemoryQuestion{.precision = "bf16-mixed"});
      const auto by_name =
          estimate_memory(make, forward, loss, images(at::kMeta),
                          {.strategy = name, .precision = "bf16-mixed", .world_size = 2, .device = at::kCPU});
      EXPECT_EQ(by_strategy.device_peak, by_name.device_peak);
      EXPECT_EQ(by_strategy.host, by_name.host);
      EXPECT_EQ(by_strategy.parameters, by_name.parameters);
      EXPECT_EQ(by_strategy.temporary, by_name.temporary);
      EXPECT_GT(by_strategy.device_peak, 0);
    }
    const FsdpOptions options{.auto_wrap_policy = policy::repeated(), .sharding_strategy = "grad_op"};
    const auto strategy = make_strategy(options, 2);
    strategy->connect({&group, [](auto*) {}}, at::kCPU);
    EXPECT_EQ(strategy->estimate(make, forward, loss, images(at::kMeta)).device_peak,
              estimate_memory(make, forward, loss, images(at::kMeta),
                              {.layout = state_layout(options, 2), .device = at::kCPU})
                  .device_peak);
  });
  SingleCollective alone;
  const auto single = make_strategy("single_device");
  EXPECT_THROW(single->layout(), Error);  // it does not know its ranks yet
  single->connect({&alone, [](auto*) {}}, at::kCPU);
  EXPECT_EQ(single->layout().ranks, 1);
  EXPECT_FALSE(single->layout().shards_optimizer);
}

}  // namespace
}  // namespace levin
