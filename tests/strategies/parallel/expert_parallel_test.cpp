// Training with experts that are spread over ranks, against one process on the whole batch.
#include "levin/strategies/expert_parallel.h"

#include <chrono>
#include <cmath>
#include <csignal>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/models/folder.h"
#include "levin/nn/checkpointing/checkpointing.h"
#include "levin/nn/experts/experts.h"
#include "levin/optim/adam.h"
#include "levin/testing/error_of.h"
#include "levin/testing/forwarding_collective.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"
#include "tests/strategies/training.h"

namespace levin::expert_training_tests {
namespace {

using namespace levin::testing;
using ::testing::HasSubstr;

struct Setting {
  std::string folder = "mixtral";
  ExpertParallelOptions options = {};
  int steps = 10;
  int accumulate = 1;
  bool recomputed = false;
  /// Each rank waits for random times within a step.
  bool delays = false;
};

models::LanguageModel model_of(const std::string& folder) {
  auto model = models::open_model(std::filesystem::path(source_dir()) / "tests/models/fixtures/language" / folder);
  model.decoder->options.balance_loss = 0.05;
  model.decoder->options.router_z_loss = 0.01;
  model.module().train();
  return model;
}

Tensor tokens_of(int64_t step) {
  torch::manual_seed(100 + step);
  return torch::randint(0, 48, {8, 6}, torch::kLong);
}

/// The full tensor of which each rank has some experts.
Tensor whole(const ExpertStrategy* strategy, const Tensor& parameter, const Tensor& value) {
  const auto* known = strategy ? strategy->find(parameter) : nullptr;
  if (!known) return value.detach().clone();
  auto all = torch::zeros(known->slice.whole);
  known->slice.put(value.detach(), all);
  strategy->mesh().group("expert").all_reduce(all);
  return all;
}

struct Outcome {
  std::vector<Tensor> losses, grads, params;
  double norm = 0, largest = 0;
};

/// Steps of SGD with momentum; gradients are those of the first step, all tensors whole.
Outcome trained(Collective& group, const Setting& setting) {
  auto model = model_of(setting.folder);
  const auto params = unique_parameters(model.module());
  if (group.rank() > 0)  // the values of rank 0 count
    for (auto& parameter : params) parameter.data().add_(1);
  if (setting.recomputed) checkpoint_activations(*model.decoder, policy::by_class<models::DecoderBlock>());
  const auto choice = group.size() == 1 ? StrategyChoice("single_device") : StrategyChoice(setting.options);
  Trainee trainee(group, choice, model.module());
  auto* strategy = dynamic_cast<ExpertStrategy*>(&trainee.strategy());
  torch::optim::SGD optimizer(params, torch::optim::SGDOptions(0.05).momentum(0.9));
  std::srand(static_cast<unsigned>(17 * group.rank() + 1));
  const auto wait = [&] {
    if (setting.delays) std::this_thread::sleep_for(std::chrono::milliseconds(std::rand() % 30));
  };
  Outcome outcome;
  for (int step = 0; step < setting.steps; ++step) {
    const auto place = trainee.strategy().data_place();
    auto mean = torch::zeros({});
    // Micro-batches of the whole batch are cut first: the balance of the load is that of each of them.
    const auto parts = tokens_of(step).chunk(setting.accumulate, 0);
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto ids = parts[i].chunk(place.size, 0)[static_cast<size_t>(place.rank)];
      trainee.set_sync(i + 1 == parts.size());
      wait();
      const auto loss =
          trainee.forward([&] { return model.decoder(ids, models::next_tokens(ids)); }) / setting.accumulate;
      wait();
      trainee.backward(loss);
      mean += loss.detach();
    }
    if (place.size > 1) group.all_reduce(mean, ReduceOp::kMean);
    outcome.losses.push_back(mean);
    if (step == 0) {
      outcome.norm = trainee.strategy().grad_norm(params, 2).item<double>();
      outcome.largest = trainee.strategy().grad_norm(params, INFINITY).item<double>();
      for (const auto& param : params) outcome.grads.push_back(whole(strategy, param, param.grad()));
    }
    optimizer.step();
    clear_grads(params);
  }
  for (const auto& param : params) outcome.params.push_back(whole(strategy, param, param));
  return outcome;
}

void expect_close(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const auto scale = std::max(1.0, wanted[i].abs().max().item<double>());
    ASSERT_EQ(got[i].sizes(), wanted[i].sizes()) << what << " " << i;
    EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>() / scale, 1e-5) << what << " " << i;
  }
}

std::shared_ptr<Collective> one_rank() {
  return join_group({}, at::kCPU);
}

struct TrainingCase {
  std::string name;
  int ranks;
  std::vector<Setting> settings;
};

class ExpertTraining : public ::testing::TestWithParam<TrainingCase> {};

TEST_P(ExpertTraining, EqualsOneProcess) {
  const auto& param = GetParam();
  std::vector<Outcome> expected;
  for (const auto& setting : param.settings) expected.push_back(trained(*one_rank(), setting));
  run_ranks(param.ranks, [&](Collective& group) {
    for (size_t i = 0; i < param.settings.size(); ++i) {
      SCOPED_TRACE(i);
      const auto got = trained(group, param.settings[i]);
      expect_close(got.losses, expected[i].losses, "loss");
      expect_close(got.grads, expected[i].grads, "gradient");
      expect_close(got.params, expected[i].params, "parameter");
      EXPECT_NEAR(got.norm, expected[i].norm, 1e-5 * std::max(1.0, expected[i].norm));
      EXPECT_NEAR(got.largest, expected[i].largest, 1e-5 * std::max(1.0, expected[i].largest));
    }
  });
}

int many(int few) {
  return all_meshes() ? 10 : few;
}

// Five experts over two and four ranks are not the same number on each (qwen3_moe, which has a dense layer too).
INSTANTIATE_TEST_SUITE_P(
    Ranks, ExpertTraining,
    ::testing::Values(
        TrainingCase{"experts2", 2, {{}, {.folder = "qwen2_moe", .steps = 2}, {.folder = "qwen3_moe", .steps = 2}}},
        TrainingCase{"experts4", 4, {{.steps = many(3), .delays = true}, {.folder = "qwen3_moe", .steps = 2}}},
        TrainingCase{"copies2_experts2",
                     4,
                     {{.options = {.size = 2}, .steps = many(2)},
                      {.options = {.size = 2}, .steps = 2, .accumulate = 2, .recomputed = true}}}),
    [](const auto& each) { return each.param.name; });

/// Counts what is sent from rank to rank, this one's own rows included.
class Counting : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  void run(std::string_view operation, const std::function<void(c10d::ProcessGroup&)>& body) override {
    if (operation.starts_with("all_to_all")) {
      ++exchanges;
      bytes += std::stoll(std::string(operation.substr(operation.find("of ") + 3)));
    }
    ForwardingCollective::run(operation, body);
  }
  int64_t exchanges = 0, bytes = 0;
};

nn::Experts layer_of(double capacity_factor) {
  torch::manual_seed(4);
  nn::Experts experts(
      nn::ExpertsOptions{.count = 4, .per_token = 2, .dim = 8, .width = 6, .capacity_factor = capacity_factor});
  const at::NoGradGuard no_grad;
  for (auto& parameter : experts->parameters()) parameter.normal_(0, 0.5);
  return experts;
}

TEST(ExpertParallel, ALayerExchangesItsTokensTwiceForwardAndTwiceBackward) {
  run_ranks(2, [&](Collective& group) {
    for (const double factor : {0.0, 1.5}) {
      const auto counting = std::make_shared<Counting>(group);
      auto experts = layer_of(factor);
      split_experts(*experts, {.size = 2}, counting);
      const auto x = torch::randn({10, 8}).requires_grad_();
      const auto y = experts(x);
      // Of 10 tokens each goes to 2 experts; with a capacity each expert has ceil(1.5 * 20 / 4) rows.
      const int64_t rows = factor == 0 ? 20 : 4 * 8, row_bytes = 8 * 4;
      const auto there = rows * row_bytes;
      EXPECT_EQ(counting->exchanges, 2);
      auto total = at::tensor({counting->bytes}, at::kLong);
      group.all_reduce(total);
      EXPECT_EQ(total.item<int64_t>(), 2 * 2 * there);  // two ranks, to the experts and back
      y.sum().backward();
      EXPECT_EQ(counting->exchanges, 4);
      total = at::tensor({counting->bytes}, at::kLong);
      group.all_reduce(total);
      EXPECT_EQ(total.item<int64_t>(), 2 * 4 * there);
    }
  });
}

// Each rank drops by its own tokens: a rank has what one process has that sees this rank's tokens alone.
TEST(ExpertParallel, ACapacityIsOfTheTokensOfARank) {
  std::vector<Tensor> inputs, wanted;
  std::vector<int64_t> dropped;
  for (int rank = 0; rank < 2; ++rank) {
    torch::manual_seed(20 + rank);
    inputs.push_back(torch::randn({9 + 2 * rank, 8}));  // not as many on each
    auto experts = layer_of(0.8);
    wanted.push_back(experts(inputs.back()).detach());
    dropped.push_back(experts->dropped.item<int64_t>());
  }
  EXPECT_GT(dropped[0] + dropped[1], 0);
  run_ranks(2, [&](Collective& group) {
    auto experts = layer_of(0.8);
    split_experts(*experts, {}, {&group, [](Collective*) {}});
    const auto rank = static_cast<size_t>(group.rank());
    EXPECT_LT((experts(inputs[rank]) - wanted[rank]).abs().max().item<double>(), 1e-5);
    EXPECT_EQ(experts->dropped.item<int64_t>(), dropped[rank]);
  });
}

TEST(ExpertParallel, ARankWhoseExpertsNobodyChoosesHasGradientsOfZeros) {
  run_ranks(2, [&](Collective& group) {
    auto experts = layer_of(0);
    experts->router.data().abs_();
    experts->router.data().slice(0, 2).fill_(-1);  // those of rank 1
    split_experts(*experts, {}, {&group, [](Collective*) {}});
    experts(torch::ones({5, 8})).sum().backward();
    for (const auto& each : {experts->gate, experts->up, experts->down}) {
      ASSERT_TRUE(each.grad().defined());
      EXPECT_EQ(each.grad().abs().max().item<double>() > 0, group.rank() == 0);
    }
  });
}

/// Loads when `from` is there, trains steps [first, last) of AdamW, saves when `to` is there; the full parameters.
std::vector<Tensor> train_part(Collective& group, const StrategyChoice& choice, int first, int last,
                               const std::filesystem::path& from, const std::filesystem::path& to) {
  auto model = model_of("mixtral");
  Optimizer optimizer = optim::AdamW(unique_parameters(model.module()), {.lr = 1e-2});
  Trainee trainee(group, choice, model.module());
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  auto* shards = trainee.strategy().shards();
  const State state{{"model", model.module().shared_from_this()}, {"optimizer", optimizer}};
  if (!from.empty()) load_checkpoint(from, state, {.shards = shards});
  for (int step = first; step < last; ++step) {
    const auto place = trainee.strategy().data_place();
    const auto ids = tokens_of(step).chunk(place.size, 0)[static_cast<size_t>(place.rank)];
    trainee.backward(trainee.forward([&] { return model.decoder(ids, models::next_tokens(ids)); }));
    optimizer.step();
    optimizer.zero_grad();
  }
  if (!to.empty() && (shards || group.rank() == 0))
    save_checkpoint(to, state, {.world_size = group.size(), .shards = shards});
  std::vector<Tensor> whole;
  const auto all =
      shards ? full_state_dict(model.module(), *shards, {.rank0_only = false}) : module_state_dict(model.module());
  for (const auto& [name, value] : all) whole.push_back(value.to_tensor().detach().clone());
  return whole;
}

TEST(ExpertParallel, CheckpointsDoNotDependOnTheRanks) {
  const TemporaryFolder root;
  const auto expected = train_part(*one_rank(), "single_device", 0, 4, {}, {});
  run_ranks(4,
            [&](Collective& group) { train_part(group, ExpertParallelOptions{.size = 2}, 0, 2, {}, root / "by_2"); });
  EXPECT_FALSE(checkpoint_info(root / "by_2").sharded);
  expect_close(train_part(*one_rank(), "single_device", 2, 4, root / "by_2", {}), expected, "one process");
  run_ranks(4, [&](Collective& group) {
    expect_close(train_part(group, ExpertParallelOptions{}, 2, 4, root / "by_2", root / "by_4"), expected, "4 ranks");
  });
  expect_close(train_part(*one_rank(), "single_device", 4, 4, root / "by_4", {}), expected, "saved by 4 ranks");
}

TEST(ExpertParallel, FoldersAreWrittenFromRanks) {
  const TemporaryFolder root;
  run_ranks(2, [&](Collective& group) {
    auto model = model_of("mixtral");
    Trainee trainee(group, "expert_parallel", model.module());
    models::save_model(model, root / "saved", {.shards = trainee.strategy().shards()});
  });
  const auto wanted = model_of("mixtral").module().parameters();
  const auto got = models::open_model(root / "saved").module().parameters();
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], wanted[i])) << i;
}

TEST(ExpertParallel, AKilledRankIsOneLine) {
  RanksOptions options{.errors_expected = true};
  const auto results = run_ranks(
      2,
      [&](Collective& group) {
        auto model = model_of("mixtral");
        Trainee trainee(group, "expert_parallel", model.module());
        for (int step = 0; step < 3; ++step) {
          if (step == 1 && group.rank() == 1) std::raise(SIGKILL);
          const auto ids = tokens_of(step).chunk(2, 0)[static_cast<size_t>(group.rank())];
          trainee.backward(trainee.forward([&] { return model.decoder(ids, models::next_tokens(ids)); }));
        }
      },
      options);
  EXPECT_EQ(results[1].signal, SIGKILL);
  EXPECT_THAT(results[0].error, HasSubstr("rank 1"));
  EXPECT_EQ(results[0].error.find('\n'), std::string::npos);
  EXPECT_LT(results[0].seconds, 50);
}

TEST(ExpertParallel, WhatCannotBeSplitIsRefused) {
  run_ranks(2, [&](Collective& group) {
    const auto ranks = std::shared_ptr<Collective>(&group, [](Collective*) {});
    SmallNet plain;
    EXPECT_THAT(error_of([&] { Trainee(group, ExpertParallelOptions{}, *plain); }), HasSubstr("has no experts"));
    auto experts = layer_of(0);
    EXPECT_THAT(error_of([&] { split_experts(*experts, {.size = 4}, ranks); }), HasSubstr("on a group of 2"));
    nn::Experts one(nn::ExpertsOptions{.count = 1, .per_token = 1, .dim = 4, .width = 4});
    EXPECT_THAT(error_of([&] { split_experts(*one, {}, ranks); }), HasSubstr("has 1 experts, which 2 ranks"));
    split_experts(*experts, {}, ranks);
    EXPECT_THAT(error_of([&] { split_experts(*experts, {}, ranks); }), HasSubstr("split over ranks already"));
    auto model = model_of("mixtral");
    EXPECT_THAT(error_of([&] { Trainee(group, ExpertParallelOptions{.size = 3}, model.module()); }),
                HasSubstr("expert 3 needs a multiple of 3 ranks, and there are 2"));
  });
}

TEST(AllToAll, RowsGoWhereTheyBelong) {
  run_ranks(3, [&](Collective& group) {
    // Rank r sends r + i rows to rank i, of numbers 10 r + i.
    std::vector<int64_t> sent, received;
    std::vector<Tensor> rows, wanted;
    for (int i = 0; i < 3; ++i) {
      sent.push_back(group.rank() + i);
      received.push_back(i + group.rank());
      rows.push_back(torch::full({sent.back(), 2}, 10 * group.rank() + i, at::kBFloat16));
      wanted.push_back(torch::full({received.back(), 2}, 10 * i + group.rank(), at::kBFloat16));
    }
    const auto got = all_to_all(group, torch::cat(rows), sent, received);
    EXPECT_TRUE(torch::equal(got, torch::cat(wanted)));
    EXPECT_EQ(got.scalar_type(), at::kBFloat16);
    // Nobody sends anything to anybody.
    EXPECT_EQ(all_to_all(group, torch::empty({0, 2}), std::vector<int64_t>(3), std::vector<int64_t>(3)).size(0), 0);
    EXPECT_THAT(error_of([&] {
                  all_to_all(group, torch::ones({4}), std::vector<int64_t>{1, 1, 1}, sent);
                }),
                HasSubstr("cannot be given to 3 ranks by 1 + 1 + 1"));
  });
}

}  // namespace
}  // namespace levin::expert_training_tests
