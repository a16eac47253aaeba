// Parameters without elements, scalars, and units that have nothing else: set up, trained, saved, loaded and sharded
// again like all others.
#include <filesystem>

#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/optim/torch/adapter.h"
#include "levin/testing/folder_test.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {
namespace fs = std::filesystem;

/// All of its parameters are empty.
struct HollowBlockImpl : torch::nn::Module {
  HollowBlockImpl() {
    rows = register_parameter("rows", torch::zeros({0, 5}));
    columns = register_parameter("columns", torch::zeros({5, 0}));
    list = register_parameter("list", torch::zeros({0}));
  }
  Tensor forward(const Tensor& x) { return x + rows.sum() + columns.sum() + list.sum(); }
  Tensor rows, columns, list;
};
LEVIN_MODULE(HollowBlock);

/// Some of them are.
struct MixedBlockImpl : torch::nn::Module {
  MixedBlockImpl() {
    first = register_parameter("first", torch::zeros({0, 5}));
    linear = register_module("linear", nn::Linear(10, 10));
    scale = register_parameter("scale", torch::full({}, 0.7));
    last = register_parameter("last", torch::zeros({3, 0, 2}));
  }
  Tensor forward(const Tensor& x) { return x + torch::tanh(linear(x)) * scale + first.sum() + last.sum(); }
  nn::Linear linear{nullptr};
  Tensor first, scale, last;
};
LEVIN_MODULE(MixedBlock);

struct HollowNetImpl : torch::nn::Module {
  HollowNetImpl() {
    none = register_parameter("none", torch::zeros({0, 5}));
    hollow = register_module("hollow", HollowBlock());
    mixed = register_module("mixed", MixedBlock());
    shift = register_parameter("shift", torch::full({}, 0.1));
    frozen = register_parameter("frozen", torch::zeros({5, 0}), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) { return mixed(hollow(x + none.sum() + frozen.sum())) + shift; }
  HollowBlock hollow{nullptr};
  MixedBlock mixed{nullptr};
  Tensor none, shift, frozen;
};
LEVIN_MODULE(HollowNet);

const UnitPolicy kUnits = policy::by_class<HollowBlock, MixedBlock>();

struct NamedChoice {
  std::string name;
  StrategyChoice choice;
};

std::vector<NamedChoice> strategies(const fs::path& folder) {
  const auto zero = [&](int stage, const std::string& to = "none") {
    ZeroOptions options{.stage = stage, .stage3_param_persistence_threshold = 0, .auto_wrap_policy = kUnits};
    options.offload_optimizer.device = to;
    if (stage == 3) options.offload_param.device = to;
    options.offload_optimizer.nvme_path = options.offload_param.nvme_path = folder / "nvme";
    return options;
  };
  const auto gemini = [](const char* policy) {
    return GeminiOptions{.placement_policy = policy, .memory_budget = 1 << 26, .auto_wrap_policy = kUnits};
  };
  return {{"fsdp", FsdpOptions{.auto_wrap_policy = kUnits}},
          {"fsdp_offload", FsdpOptions{.auto_wrap_policy = kUnits, .cpu_offload = true}},
          {"fsdp_full_state", FsdpOptions{.auto_wrap_policy = kUnits, .state_dict_type = "full"}},
          {"none", FsdpOptions{.auto_wrap_policy = kUnits, .sharding_strategy = "none"}},
          {"stage_1", zero(1)},
          {"stage_2", zero(2)},
          {"stage_3", zero(3)},
          {"stage_2_offload", zero(2, "cpu")},
          {"stage_3_offload", zero(3, "cpu")},
          {"stage_3_nvme", zero(3, "nvme")},
          {"gemini_auto", gemini("auto")},
          {"gemini_cuda", gemini("cuda")},
          {"ddp", "ddp"}};
}

/// Loads when `from` is there, trains steps [first, last), saves when `to` is there; losses, and what is not empty.
std::vector<Tensor> train(Collective& group, const StrategyChoice& choice, int first, int last, const fs::path& from,
                          const fs::path& to, const std::string& precision = "32-true", bool torchs = false) {
  torch::manual_seed(first == 0 ? 3 : 1000 + group.rank());
  HollowNet net;
  const auto params = unique_parameters(*net);
  std::vector<Tensor> trained;
  for (const auto& param : params)
    if (param.requires_grad()) trained.push_back(param);
  Optimizer optimizer = torchs ? optim::adapt(torch::optim::SGD(trained, torch::optim::SGDOptions(0.05).momentum(0.9)))
                               : Optimizer(optim::AdamW(trained, {.lr = 1e-2}));
  Trainee trainee(group, choice, *net, at::kCPU, precision);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  auto* shards = trainee.strategy().shards();
  const State state{{"model", net}, {"optimizer", optimizer}};
  if (!from.empty()) load_checkpoint(from, state, {.shards = shards});
  std::vector<Tensor> losses, results;
  for (int step = first; step < last; ++step) {
    const auto [x, y] = boring_data(12, 10, static_cast<uint64_t>(1000 + step));
    const auto target = shard_of(torch::cat(std::vector<Tensor>(5, y), 1), group.rank(), group.size());
    const auto mine = shard_of(x, group.rank(), group.size());
    const auto output = trainee.forward([&] {
      const auto plan = resolve_precision(precision, at::kCPU);
      std::optional<Autocast> autocast;
      if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
      return net(mine);
    });
    auto loss = mse(output.to(at::kFloat), target);
    trainee.backward(loss);
    for (const auto& param : trained) EXPECT_TRUE(param.grad().defined());
    optim::clip_grads_with_norm(trained, 1.0, trainee.strategy().grad_norm(trained, 2));
    optimizer.step();
    optimizer.zero_grad();
    loss = loss.detach();
    group.all_reduce(loss, ReduceOp::kMean);
    losses.push_back(loss);
  }
  if (!to.empty() && (shards || group.rank() == 0))
    save_checkpoint(to, state, {.world_size = group.size(), .shards = shards});
  group.barrier();
  results.push_back(at::stack(losses));
  for (const auto& param : params) {
    const auto* place = shards ? shards->find(param) : nullptr;
    if (c10::multiply_integers(place ? place->sizes : param.sizes().vec()) > 0)
      results.push_back(whole_of(group, shards, param, param));
  }
  return results;
}

class EmptyParams : public FolderTest {
 protected:
};

TEST_F(EmptyParams, TrainAsInOneProcess) {
  run_ranks(3, [&](Collective& group) {
    at::set_num_threads(1);
    for (const char* precision : {"32-true", "bf16-mixed"})
      for (const bool torchs : {false, true}) {
        SingleCollective alone;
        const auto one = train(alone, "single_device", 0, 4, {}, {}, precision, torchs);
        for (const auto& [name, choice] : strategies(folder_)) {
          const bool disk = name == "stage_3_nvme" && torchs;  // torch's state cannot be put there
          if (disk) continue;
          EXPECT_LT(max_difference(train(group, choice, 0, 4, {}, {}, precision, torchs), one),
                    std::string(precision) == "32-true" ? 2e-5 : 5e-2)
              << name << ", " << precision;
          EXPECT_LT(max_difference(train(alone, choice, 0, 4, {}, {}, precision, torchs), one),
                    std::string(precision) == "32-true" ? 2e-5 : 5e-2)
              << name << ", " << precision << ", one rank";
        }
      }
  });
}

TEST_F(EmptyParams, ResumeFromCheckpointsOfAnyStrategy) {
  const auto all = strategies(folder_);
  for (const bool torchs : {false, true}) {
    const auto folder = [&](const std::string& name) { return folder_ / (torchs ? "torch" : "levin") / name; };
    const auto usable = [&](const std::string& name) { return !torchs || name != "stage_3_nvme"; };
    run_ranks(2, [&](Collective& group) {
      for (const auto& [name, choice] : all)
        if (usable(name)) train(group, choice, 0, 2, {}, folder(name), "32-true", torchs);
    });
    for (const int world : {1, 3})
      run_ranks(world, [&](Collective& group) {
        SingleCollective alone;
        auto one = train(alone, "single_device", 0, 4, {}, {}, "32-true", torchs);
        one[0] = one[0].narrow(0, 2, 2);
        for (size_t i = 0; i < all.size(); ++i) {
          const auto &from = all[i], &to = all[(i + 1) % all.size()];
          if (!usable(from.name) || !usable(to.name)) continue;
          const auto many = train(group, to.choice, 2, 4, folder(from.name), {}, "32-true", torchs);
          EXPECT_LT(max_difference(many, one), 2e-5) << from.name << " to " << to.name << " on " << world;
        }
      });
  }
}

// A model of nothing else, and one without parameters.
TEST_F(EmptyParams, AreAllThereIs) {
  const std::vector<StrategyChoice> choices{FsdpOptions{},           FsdpOptions{.cpu_offload = true},
                                            ZeroOptions{.stage = 1}, ZeroOptions{.stage = 2},
                                            ZeroOptions{.stage = 3}, GeminiOptions{.memory_budget = 1 << 26}};
  run_ranks(2, [&](Collective& group) {
    for (const auto& choice : choices) {
      HollowBlock net;
      Trainee trainee(group, choice, *net);
      auto optimizer = trainee.strategy().setup_optimizer(optim::AdamW(net->parameters()));
      for (int step = 0; step < 2; ++step) {
        auto x = at::ones({2, 3}).requires_grad_();
        trainee.backward(trainee.forward([&] { return net(x); }).sum());
        EXPECT_TRUE(net->rows.grad().defined()) << choice.name();
        EXPECT_EQ(x.grad().sum().item<float>(), 6) << choice.name();
        optimizer.step();
        optimizer.zero_grad();
      }
      nn::Dropout nothing;
      Trainee none(group, choice, *nothing);
      EXPECT_TRUE(none.forward([&] { return nothing(at::ones({2})); }).defined());
    }
  });
}

}  // namespace
}  // namespace levin::testing
