// Torch's own optimizers, which step through data() and leave versions as they were, beside Levin's, also the one that
// needs norms of full parameters: under every strategy and precision they are equal to one process, and the loss falls.
#include <gtest/gtest.h>

#include "levin/optim/torch/adapter.h"
#include "levin/precision/precision.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

const auto kBlocks = policy::by_class<ShardBlock>();

ZeroOptions zero(int stage, bool offload = false, bool offload_param = false) {
  ZeroOptions options{.stage = stage, .stage3_param_persistence_threshold = 12, .auto_wrap_policy = kBlocks};
  if (offload) options.offload_optimizer.device = "cpu";
  if (offload_param) options.offload_param.device = "cpu";
  return options;
}

GeminiOptions gemini(const std::string& policy) {
  return {.placement_policy = policy, .memory_budget = 1 << 26, .auto_wrap_policy = kBlocks};
}

struct NamedChoice {
  std::string name;
  StrategyChoice choice;
  /// Ranks that share a copy of the model; 0: all.
  int shard_size = 0;
};

std::vector<NamedChoice> strategies() {
  return {{"ddp", "ddp"},
          {"fsdp", FsdpOptions{.auto_wrap_policy = kBlocks}},
          {"fsdp_offload", FsdpOptions{.auto_wrap_policy = kBlocks, .cpu_offload = true}},
          {"grad_op", FsdpOptions{.auto_wrap_policy = kBlocks, .sharding_strategy = "grad_op"}},
          {"none", FsdpOptions{.auto_wrap_policy = kBlocks, .sharding_strategy = "none"}, 1},
          {"hybrid", FsdpOptions{.auto_wrap_policy = kBlocks, .sharding_strategy = "hybrid", .hybrid_size = 1}, 1},
          {"stage_1", zero(1)},
          {"stage_2", zero(2)},
          {"stage_3", zero(3)},
          {"stage_1_offload", zero(1, true)},
          {"stage_2_offload", zero(2, true)},
          {"stage_3_offload", zero(3, true, true)},
          {"stage_3_offload_optimizer", zero(3, true)},
          {"gemini_auto", gemini("auto")},
          {"gemini_cuda", gemini("cuda")},
          {"gemini_cpu", gemini("cpu")}};
}

/// Large eps, so that the rounding of gradients near zero does not become whole steps.
Optimizer make_optimizer(const std::string& name, const std::vector<Tensor>& params) {
  namespace to = torch::optim;
  if (name == "torch::SGD") return optim::adapt(to::SGD(params, to::SGDOptions(0.05).momentum(0.9)));
  if (name == "torch::Adam") return optim::adapt(to::Adam(params, to::AdamOptions(2e-2).eps(1e-2)));
  if (name == "torch::RMSprop") return optim::adapt(to::RMSprop(params, to::RMSpropOptions(5e-3).eps(5e-2)));
  if (name == "Lamb") return optim::Lamb(params, {.lr = 2e-2, .eps = 1e-2, .weight_decay = 0.05});
  if (name == "SGD") return optim::SGD(params, {.lr = 0.05, .momentum = 0.9});
  return optim::AdamW(params, {.lr = 2e-2, .eps = 1e-2});
}

struct Setting {
  std::string optimizer;
  std::string precision;
  double tolerance;
  int accumulate = 1;
  double clip = 0;
  /// A forward between backward and step: "" none, "training", "evaluation".
  std::string forward = {};
};

/// A strategy with the precision that it has on a GPU: "16-mixed" does not become "bf16-mixed".
struct Session {
  Session(Collective& group, const StrategyChoice& choice, const std::string& precision)
      : plan(resolve_precision(precision, at::kCUDA)), strategy(make_strategy(choice, group.size())) {
    torch::manual_seed(group.rank() == 0 ? 3 : 100 + group.rank());
    net = ShardNet(ShardNetOptions{.blocks = 2});
    params = unique_parameters(*net);
    strategy->connect({&group, [](auto*) {}}, at::kCPU);
    strategy->set_precision(plan);
    if (!strategy->traits().places_modules && plan.params) net->to(*plan.params);
    sync = strategy->setup_module(*net);
  }
  Tensor forward(const Tensor& x) {
    if (sync) sync->before_forward();
    Tensor output;
    {
      std::optional<Autocast> autocast;
      if (plan.autocast) autocast.emplace(at::kCPU, *plan.autocast);
      output = net(plan.params ? x.to(*plan.params) : x);
    }
    if (sync) sync->leave_forward();
    if (sync) sync->after_forward({&output, output.requires_grad() ? size_t{1} : size_t{0}});
    return output.to(at::kFloat);
  }
  void backward(const Tensor& loss) {
    std::vector<ModuleSync*> syncs;
    if (sync) syncs.push_back(sync.get());
    run_backward(syncs, loss, [&] { loss.backward(); });
  }

  PrecisionPlan plan;
  std::unique_ptr<Strategy> strategy;
  ShardNet net{nullptr};
  std::vector<Tensor> params;
  std::unique_ptr<ModuleSync> sync;
};

/// Losses of the steps, then full parameters.
std::vector<Tensor> train(Collective& group, const NamedChoice& with, const Setting& setting) {
  constexpr int kSteps = 3;
  constexpr int64_t kRows = 8, kWidth = 10;
  Session run(group, with.choice, setting.precision);
  auto optimizer = run.strategy->setup_optimizer(make_optimizer(setting.optimizer, run.params));
  GradScaler scaler({.init_scale = run.plan.scales_loss ? 256.0 : 1.0});
  if (group.size() > 1 && run.strategy->shards())
    scaler.share_found_inf([&](Tensor& found) { group.all_reduce(found, ReduceOp::kMax); });
  std::vector<Tensor> losses, results;
  for (int step = 0; step < kSteps; ++step) {
    auto total = at::zeros({});
    for (int micro = 0; micro < setting.accumulate; ++micro) {
      const auto [x, y] = boring_data(kRows, kWidth, static_cast<uint64_t>(50 + micro));
      const auto target = shard_of(torch::cat(std::vector<Tensor>(kWidth / 2, y), 1), group.rank(), group.size());
      if (run.sync) run.sync->set_sync(micro + 1 == setting.accumulate);
      const auto loss = mse(run.forward(shard_of(x, group.rank(), group.size())), target) / setting.accumulate;
      total = total + loss.detach();
      run.backward(run.plan.scales_loss ? scaler.scale(loss) : loss);
    }
    group.all_reduce(total, ReduceOp::kMean);
    losses.push_back(total);
    if (setting.clip > 0) {
      if (run.plan.scales_loss) scaler.unscale(optimizer);
      optim::clip_grads_with_norm(run.params, setting.clip, run.strategy->grad_norm(run.params, 2));
    }
    if (!setting.forward.empty()) {
      const at::AutoGradMode mode(setting.forward == "training");
      run.forward(shard_of(std::get<0>(boring_data(kRows, kWidth, 50)), group.rank(), group.size()));
    }
    if (run.plan.scales_loss) {
      scaler.step(optimizer);
      scaler.update();
    } else {
      optimizer.step();
    }
    optimizer.zero_grad();
  }
  results.push_back(at::stack(losses));
  for (const auto& param : run.params) {
    const auto whole =
        with.shard_size == 1 ? param.detach() : whole_of(group, run.strategy->shards(), param, param.detach());
    results.push_back(whole.to(at::kFloat));
  }
  return results;
}

std::vector<Setting> settings(const std::string& precision, double tolerance) {
  std::vector<Setting> all;
  for (const char* optimizer : {"torch::SGD", "torch::Adam", "torch::RMSprop", "AdamW", "Lamb"})
    all.push_back({optimizer, precision, tolerance});
  all.push_back({"torch::SGD", precision, tolerance, 2, 0.2});
  all.push_back({"SGD", precision, tolerance, 2, 0.2});
  all.push_back({"Lamb", precision, tolerance, 2, 0.2});
  return all;
}

/// Every strategy on the same ranks, each against one process that has the whole batch.
void expect_equal_to_one_process(int world, const std::vector<Setting>& all, int turn = 0) {
  run_ranks(world, [&](Collective& group) {
    at::set_num_threads(1);
    for (const auto& setting : all) {
      SingleCollective alone;
      const auto one = train(alone, {"single_device", "single_device"}, setting);
      ++turn;
      for (const auto& with : strategies()) {
        // Every strategy with every optimizer and every precision; all three together if asked for.
        if (world > 1 && ++turn % 3 != 0 && !all_meshes()) continue;
        const auto many = train(group, with, setting);
        const auto where = with.name + ", " + setting.optimizer + ", " + setting.precision +
                           (setting.accumulate > 1 ? ", accumulated and clipped" : "");
        EXPECT_LT(max_difference({many[0]}, {one[0]}), setting.tolerance) << where << ": " << many[0] << one[0];
        EXPECT_LT(max_difference(many, one), setting.tolerance) << where;
        EXPECT_LT(many[0][-1].item<double>(), 0.995 * many[0][0].item<double>()) << where << ": " << many[0];
      }
    }
  });
}

TEST(TorchOptimizers, EqualOneProcessIn32True) {
  expect_equal_to_one_process(2, settings("32-true", 2e-5));
}

TEST(TorchOptimizers, EqualOneProcessInBf16Mixed) {
  expect_equal_to_one_process(2, settings("bf16-mixed", 4e-2), 1);
}

TEST(TorchOptimizers, EqualOneProcessIn16Mixed) {
  expect_equal_to_one_process(2, settings("16-mixed", 1e-2), 2);
}

TEST(TorchOptimizers, EqualOneProcessInBf16True) {
  expect_equal_to_one_process(2, settings("bf16-true", 8e-2), 3);
}

TEST(TorchOptimizers, EqualOneProcessOnOneRank) {
  std::vector<Setting> all;
  for (const auto& [precision, tolerance] : {std::pair{"32-true", 2e-5}, std::pair{"bf16-mixed", 4e-2},
                                             std::pair{"16-mixed", 1e-2}, std::pair{"bf16-true", 8e-2}})
    for (const char* optimizer : {"torch::SGD", "torch::Adam"}) all.push_back({optimizer, precision, tolerance});
  expect_equal_to_one_process(1, all);
}

// A forward between backward and step gathers what the step makes old.
TEST(ForwardBetweenBackwardAndStep, ChangesNoBit) {
  for (const int world : {1, 2})
    run_ranks(world, [](Collective& group) {
      at::set_num_threads(1);
      for (const auto& with : strategies())
        for (const char* precision : {"32-true", "bf16-mixed", "16-mixed"})
          for (const char* optimizer : {"SGD", "AdamW", "torch::SGD"}) {
            Setting setting{optimizer, precision, 0};
            const auto plain = train(group, with, setting);
            for (const char* forward : {"training", "evaluation"}) {
              setting.forward = forward;
              EXPECT_EQ(max_difference(train(group, with, setting), plain), 0)
                  << with.name << ", " << precision << ", " << optimizer << ", " << forward;
            }
          }
    });
}

// Whoever writes parameters between two forwards through data() is heard, with and without gradients, also when only
// one rank has written.
TEST(WritesBehindVersions, AreSeenByTheNextForward) {
  run_ranks(2, [](Collective& group) {
    at::set_num_threads(1);
    const auto x = std::get<0>(boring_data(8, 10, 7));
    for (const auto& with : strategies()) {
      if (with.name == "ddp") continue;
      for (const char* precision : {"32-true", "bf16-mixed"})
        for (const bool training : {false, true}) {
          const auto where = with.name + ", " + precision + (training ? ", training" : "");
          Session run(group, with.choice, precision);
          SingleCollective alone;
          Session plain(alone, "single_device", precision);
          {
            const at::NoGradGuard no_grad;
            for (size_t i = 0; i < run.params.size(); ++i)
              plain.params[i].copy_(whole_of(group, with.shard_size == 1 ? nullptr : run.strategy->shards(),
                                             run.params[i], run.params[i]));
          }
          at::AutoGradMode mode(training);
          const double tolerance = std::string(precision) == "32-true" ? 1e-5 : 6e-2;
          for (int round = 0; round < 3; ++round) {
            EXPECT_LT(max_difference({run.forward(x)}, {plain.forward(x)}), tolerance) << where << " " << round;
            for (auto& param : run.params) param.data().mul_(0.5);
            for (auto& param : plain.params) param.data().mul_(0.5);
          }
          if (with.shard_size == 1) continue;
          // One rank alone: all have the new values.
          const auto before = run.forward(x).detach();
          if (group.rank() == 1)
            for (auto& param : run.params) param.data().add_(0.25);
          const auto after = run.forward(x).detach();
          EXPECT_GT(max_difference({before}, {after}), 0.01) << where;
          auto mean = after.clone();
          group.all_reduce(mean, ReduceOp::kMean);
          EXPECT_EQ(max_difference({mean}, {after}), 0) << where;
        }
    }
  });
}

// Wholes that are right are not gathered again: an evaluation costs one small message a batch.
TEST(WritesBehindVersions, CostNoGatheringWhereThereAreNone) {
  run_ranks(2, [](Collective& real) {
    WatchedCollective group(real);
    const at::NoGradGuard no_grad;
    Session run(group, zero(2), "32-true");
    const auto x = std::get<0>(boring_data(8, 10, 7));
    run.forward(x);
    const auto gathered = group.runs["fsdp.all_gather"];
    EXPECT_GT(gathered, 0);
    for (int batch = 0; batch < 3; ++batch) run.forward(x);
    EXPECT_EQ(group.runs["fsdp.all_gather"], gathered);
    run.params[0].data().add_(1);
    run.forward(x);
    EXPECT_GT(group.runs["fsdp.all_gather"], gathered);
  });
}

}  // namespace
}  // namespace levin::testing
