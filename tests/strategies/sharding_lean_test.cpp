// Optimizers that keep less than a float for each average, where each rank has a part of every parameter.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/checkpoint/checkpoint.h"
#include "levin/optim/adam_8bit.h"
#include "levin/optim/torch/adapter.h"
#include "levin/testing/error_of.h"
#include "levin/testing/folder_test.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {
namespace fs = std::filesystem;
using ::testing::HasSubstr;

const FsdpOptions kFsdp{.auto_wrap_policy = policy::by_class<ShardBlock>()};

/// Parts of its weights have codes on two ranks, and floats or codes on four. The codes of "up" have the shape of the
/// weight itself.
const ShardNetOptions kLeanNet{.width = 256, .hidden = 40, .blocks = 2};

struct LeanRun {
  std::string name;
  StrategyChoice choice = kFsdp;
  /// Where it resumes from, at step 3; empty: it begins.
  fs::path from = {};
  /// Saved at step 3.
  fs::path to = {};
  bool full = false;
  int shard_size = 0;
  /// The optimizer begins again.
  bool forgets = false;
};

/// Losses, then full parameters.
std::vector<Tensor> train_lean(Collective& group, const LeanRun& run) {
  at::set_num_threads(1);
  torch::manual_seed(run.from.empty() ? 3 : 1000 + group.rank());
  ShardNet net(kLeanNet);
  const auto parameters = unique_parameters(*net);
  Optimizer optimizer = optim::AdamW8bit(parameters, {.lr = 3e-3});
  Trainee trainee(group, run.choice, *net);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  auto* shards = trainee.strategy().shards();
  const State state{{"model", net}, {"optimizer", optimizer}};
  if (run.forgets)
    load_checkpoint(run.from, State{{"model", net}}, {.shards = shards});
  else if (!run.from.empty())
    load_checkpoint(run.from, state, {.shards = shards});
  std::vector<Tensor> losses;
  for (int step = run.from.empty() ? 0 : 3; step < 6; ++step) {
    if (step == 3 && !run.to.empty() && (shards || group.rank() == 0))
      save_checkpoint(run.to, state, {.world_size = group.size(), .shards = shards, .full = run.full});
    const auto [x, y] = boring_data(8, kLeanNet.width);
    const auto target = torch::cat(std::vector<Tensor>(static_cast<size_t>(kLeanNet.width) / 2, y), 1);
    const auto mine = shard_of(x, group.rank(), group.size());
    const auto output = trainee.forward([&] { return net(mine); });
    auto loss = mse(output, shard_of(target, group.rank(), group.size()));
    trainee.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    auto mean = loss.detach().clone();
    group.all_reduce(mean, ReduceOp::kMean);
    losses.push_back(mean);
  }
  std::vector<Tensor> results{at::stack(losses)};
  for (const auto& parameter : parameters)
    results.push_back(whole_of(group, shards, parameter, parameter, run.shard_size));
  return results;
}

using Results = std::map<std::string, std::vector<Tensor>>;

/// Runs one after the other on the same ranks; rank 0's results, by name.
void train_lean(int world, const std::vector<LeanRun>& runs, Results& results) {
  const auto train_all = [&](Collective& group) {
    std::vector<Tensor> all;
    for (const auto& run : runs) {
      const auto some = train_lean(group, run);
      all.insert(all.end(), some.begin(), some.end());
      group.barrier();
    }
    return all;
  };
  const auto ranks = run_ranks(world, train_all);
  const auto& all = ranks[0].tensors;
  const auto each = static_cast<int64_t>(all.size() / runs.size());
  ASSERT_GT(each, 1);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto begin = all.begin() + static_cast<int64_t>(i) * each;
    results[runs[i].name] = {begin, begin + each};
  }
}

/// Of the losses of the last steps.
double loss_difference(const std::vector<Tensor>& some, const std::vector<Tensor>& all) {
  const auto count = some[0].numel();
  return max_difference({some[0]}, {all[0].narrow(0, all[0].numel() - count, count)});
}

class ShardingLean : public FolderTest {
 protected:
  ShardingLean() { at::set_num_threads(1); }  // ranks are forked, and a pool of threads would not be
  ~ShardingLean() override { at::set_num_threads(threads_); }
  const int threads_ = at::get_num_threads();
};

TEST_F(ShardingLean, ResumesUnderAnyStrategy) {
  const auto one = folder_ / "one", two = folder_ / "two", four = folder_ / "four", zero = folder_ / "zero",
             full = folder_ / "full", whole = folder_ / "whole";
  const ZeroOptions stage2{.stage = 2, .auto_wrap_policy = policy::by_class<ShardBlock>()};
  FsdpOptions hybrid = kFsdp;
  hybrid.sharding_strategy = "hybrid";
  hybrid.hybrid_size = 2;
  Results results;
  train_lean(1, {{.name = "alone", .choice = "single_device", .to = one}}, results);
  train_lean(2,
             {{.name = "two", .to = two},
              {.name = "two again", .from = two},
              {.name = "zero", .choice = stage2, .to = zero},
              {.name = "zero again", .choice = stage2, .from = zero},
              {.name = "full", .to = full, .full = true},
              {.name = "full again", .from = full},
              {.name = "one on two", .from = one},
              {.name = "two on ddp", .choice = "ddp", .from = two}},
             results);
  train_lean(4,
             {{.name = "four", .to = four},
              {.name = "four again", .from = four},
              {.name = "two on four", .from = two},
              {.name = "one on four", .choice = "deepspeed_stage_3", .from = one},
              {.name = "two on hybrid", .choice = hybrid, .from = two, .shard_size = 2}},
             results);
  train_lean(2, {{.name = "four on two", .choice = stage2, .from = four}}, results);
  consolidate_checkpoint(two, whole);
  train_lean(1,
             {{.name = "two on one", .choice = "single_device", .from = two},
              {.name = "whole on one", .choice = "single_device", .from = whole},
              {.name = "full on one", .choice = "single_device", .from = full},
              {.name = "forgotten", .choice = "single_device", .from = two, .forgets = true}},
             results);

  // Bit by bit where the parts are the same ...
  for (const char* name : {"two", "zero", "full", "four"}) {
    const auto &wanted = results.at(name), &again = results.at(std::string(name) + " again");
    EXPECT_EQ(loss_difference(again, wanted), 0) << name;
    for (size_t i = 1; i < wanted.size(); ++i) EXPECT_TRUE(at::equal(again[i], wanted[i])) << name << " " << i;
  }
  EXPECT_EQ(max_difference(results.at("whole on one"), results.at("two on one")), 0);
  EXPECT_EQ(max_difference(results.at("full on one"), results.at("two on one")), 0);
  EXPECT_FALSE(checkpoint_info(whole).sharded);
  // ... and elsewhere as close as codes are.
  const auto& wanted = results.at("alone");
  const double way = (wanted[0][0] - wanted[0][5]).item<double>(),
               forgotten = loss_difference(results.at("forgotten"), wanted);
  EXPECT_GT(way, 0.1);
  for (const auto& [name, result] : results) {
    if (name == "forgotten") continue;
    EXPECT_LT(loss_difference(result, wanted), forgotten / 10) << name;
    EXPECT_LT(loss_difference(result, wanted), way / 100) << name;
  }
}

TEST_F(ShardingLean, KeepsCodesAndShowsFloatsOfTheShard) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(1);
    ShardNet net(kLeanNet);
    Optimizer raw = optim::Adam8bit(net->parameters());
    Trainee trainee(group, kFsdp, *net);
    auto optimizer = trainee.strategy().setup_optimizer(raw);
    const auto step = [&] {
      trainee.backward(trainee.forward([&] { return net(torch::randn({4, kLeanNet.width})); }).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    const auto params = optimizer.all_params();
    const auto shown = optimizer.state_dict();
    const auto& states = shown.at("state").to_dict();
    size_t large = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      if (params[i].numel() == 0) continue;
      const auto& state = states.at(std::to_string(i)).to_dict();
      EXPECT_EQ(state.at("state1").to_tensor().sizes(), params[i].sizes());
      EXPECT_EQ(state.at("state2").to_tensor().scalar_type(), at::kFloat);
      EXPECT_FALSE(state.contains("absmax1"));
      large += params[i].numel() >= 4096;
    }
    EXPECT_EQ(large, 6u);
    // The same tensors while they are held, others when the state has moved on.
    const auto tensor = [&](const StateDict& of) {
      return of.at("state").to_dict().at("0").to_dict().at("state1").to_tensor();
    };
    EXPECT_TRUE(tensor(optimizer.state_dict()).is_same(tensor(shown)));
    step();
    EXPECT_FALSE(tensor(optimizer.state_dict()).is_same(tensor(shown)));
    EXPECT_FALSE(at::equal(tensor(optimizer.state_dict()), tensor(shown)));
  });
}

TEST(ShardingOptimizers, ThoseThatNeedFullParametersAreRefused) {
  run_ranks(2, [](Collective& group) {
    for (const StrategyChoice& choice : {StrategyChoice(kFsdp), StrategyChoice("deepspeed_stage_1")}) {
      ShardNet net;
      Trainee trainee(group, choice, *net);
      for (const auto& optimizer :
           {Optimizer(optim::Adafactor(net->parameters())),
            optim::adapt(torch::optim::LBFGS(net->parameters(), torch::optim::LBFGSOptions(1.0)))}) {
        const auto line = error_of([&] { trainee.strategy().setup_optimizer(optimizer); });
        EXPECT_THAT(line, HasSubstr(optimizer.name() + " steps by figures of full parameters"));
        EXPECT_THAT(line, HasSubstr("use AdamW8bit or SGD"));
      }
    }
    // Copies are whole.
    ShardNet net;
    Trainee trainee(group, FsdpOptions{.sharding_strategy = "none"}, *net);
    trainee.strategy().setup_optimizer(Optimizer(optim::Adafactor(net->parameters())));
  });
}

}  // namespace
}  // namespace levin::testing
