#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// Blocks of equal (or, with `unequal`, different) size that forward calls in the order that it is given.
struct OrderNetImpl : torch::nn::Module {
  explicit OrderNetImpl(bool unequal = false) {
    stem = register_module("stem", nn::Linear(6, 6));
    for (int i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), ShardBlock(6, unequal ? 5 + 4 * i : 9)));
    head = register_module("head", nn::Linear(6, 2));
  }
  Tensor forward(const Tensor& x, const std::vector<int>& order) {
    auto h = stem(x);
    for (const int i : order) h = blocks[static_cast<size_t>(i)](h);
    return head(h);
  }
  nn::Linear stem{nullptr}, head{nullptr};
  std::vector<ShardBlock> blocks;
};
LEVIN_MODULE(OrderNet);

using BlockOrder = std::vector<int>;
/// The order in which a rank calls the blocks in a step.
using Orders = std::function<BlockOrder(int rank, int step)>;

const StrategyChoice kFsdpOfBlocks = FsdpOptions{.auto_wrap_policy = policy::by_class<ShardBlock>()};

StrategyChoice zero_stage(int stage) {
  return ZeroOptions{
      .stage = stage, .stage3_param_persistence_threshold = 0, .auto_wrap_policy = policy::by_class<ShardBlock>()};
}

std::pair<Tensor, Tensor> order_data(int rank, int step) {
  return boring_data(4, 6, static_cast<uint64_t>(100 * step + rank));
}

constexpr int kOrderSteps = 5;

optim::AdamW order_optimizer(const std::vector<Tensor>& params) {
  return optim::AdamW(params, {.lr = 0.05, .weight_decay = 0.1});
}

/// The parameters that one process gets which computes the mean of all ranks' losses.
std::vector<Tensor> expected_of_orders(int world, const Orders& orders, bool unequal = false) {
  torch::manual_seed(3);
  OrderNet net(unequal);
  auto optimizer = order_optimizer(net->parameters());
  for (int step = 0; step < kOrderSteps; ++step) {
    Tensor total = at::zeros({});
    for (int rank = 0; rank < world; ++rank) {
      const auto [x, y] = order_data(rank, step);
      total = total + mse(net(x, orders(rank, step)), y) / world;
    }
    total.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return values(net->parameters());
}

std::vector<Tensor> train_in_order(Collective& real, Collective& group, const StrategyChoice& choice,
                                   const Orders& orders, bool unequal = false,
                                   const std::function<void(int)>& after_step = {}) {
  torch::manual_seed(3);
  OrderNet net(unequal);
  const auto parameters = net->parameters();
  Optimizer optimizer = order_optimizer(parameters);
  Trainee trainee(group, choice, *net);
  optimizer = trainee.strategy().setup_optimizer(optimizer);
  for (int step = 0; step < kOrderSteps; ++step) {
    const auto [x, y] = order_data(real.rank(), step);
    const auto output = trainee.forward([&, x = x] { return net(x, orders(real.rank(), step)); });
    trainee.backward(mse(output, y));
    optimizer.step();
    optimizer.zero_grad();
    if (after_step) after_step(step);
  }
  std::vector<Tensor> results;
  for (const auto& parameter : parameters)
    results.push_back(whole_of(real, trainee.strategy().shards(), parameter, parameter));
  return results;
}

std::vector<RankResult> run_in_order(int world, const StrategyChoice& choice, const Orders& orders, bool errors,
                                     bool unequal = false) {
  RanksOptions options;
  options.errors_expected = errors;
  options.collective.timeout = std::chrono::seconds(40);
  return run_ranks(
      world, [&](Collective& group) { return train_in_order(group, group, choice, orders, unequal); }, options);
}

void expect_line(const std::vector<RankResult>& results, const std::vector<std::string>& parts) {
  for (const auto& result : results) {
    EXPECT_FALSE(result.timed_out);
    EXPECT_EQ(result.signal, 0);
    EXPECT_EQ(result.error, results[0].error);
    EXPECT_LT(result.seconds, 50);
    for (const auto& part : parts) EXPECT_THAT(result.error, HasSubstr(part));
  }
}

BlockOrder another_order_on_rank_1(int rank, int step, int from) {
  return rank == 1 && step >= from ? BlockOrder{1, 0, 2} : BlockOrder{0, 1, 2};
}

class WithOrder : public ::testing::TestWithParam<int> {};

/// In the first step, in which nothing is known, and later, when others follow what is.
TEST_P(WithOrder, AnotherOrderOnOneRankIsOneLineUnderFsdp) {
  for (const auto& choice : {kFsdpOfBlocks, zero_stage(3)})
    for (const bool unequal : {false, true}) {
      const auto results = run_in_order(
          2, choice, [](int rank, int step) { return another_order_on_rank_1(rank, step, GetParam()); }, true, unequal);
      expect_line(results, {"ranks disagree: rank 0 calls", "rank 1 calls", "\"block0\"", "\"block1\"", "elements"});
    }
}

TEST_P(WithOrder, OneOfFourRanksIsNamed) {
  const auto results = run_in_order(
      4, kFsdpOfBlocks, [](int rank, int step) { return another_order_on_rank_1(rank, step, GetParam()); }, true);
  expect_line(results, {"ranks 0, 2 and 3 call", "rank 1 calls"});
}

TEST_P(WithOrder, UnitsThatOnlySomeRanksCallAreOneLineUnderFsdp) {
  for (const BlockOrder& fewer : {BlockOrder{0, 1}, BlockOrder{0, 2}, BlockOrder{}}) {
    const auto results = run_in_order(
        2, kFsdpOfBlocks,
        [&](int rank, int step) {
          return rank == 1 && step >= GetParam() ? fewer : BlockOrder{0, 1, 2};
        },
        true);
    expect_line(results, {"ranks disagree: rank 0 calls", "rank 1 calls"});
  }
}

INSTANTIATE_TEST_SUITE_P(UnitOrder, WithOrder, ::testing::Values(0, 3));

TEST(UnitOrder, IsFreeInStages1And2) {
  const Orders orders = [](int rank, int step) {
    static const std::vector<BlockOrder> kSome{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}};
    return kSome[static_cast<size_t>(rank * 2 + step) % kSome.size()];
  };
  for (const int stage : {1, 2})
    for (const bool unequal : {false, true}) {
      const auto one = expected_of_orders(3, orders, unequal);
      for (const auto& rank : run_in_order(3, zero_stage(stage), orders, false, unequal))
        EXPECT_LT(max_difference(rank.tensors, one), 1e-5) << stage << unequal;
    }
}

TEST(UnitOrder, UnitsMayBeCalledBySomeRanksInStages1And2) {
  // Block 1 is called by rank 1 alone, block 2 in no but the first step: it has no gradient then, and is not moved.
  const Orders orders = [](int rank, int step) {
    if (step == 0) return rank == 0 ? BlockOrder{0, 2} : BlockOrder{1};
    return rank == 0 ? BlockOrder{0} : BlockOrder{1, 0};
  };
  for (const int stage : {1, 2}) {
    const auto one = expected_of_orders(2, orders);
    for (const auto& rank : run_in_order(2, zero_stage(stage), orders, false))
      EXPECT_LT(max_difference(rank.tensors, one), 1e-5) << stage;
  }
}

TEST(UnitOrder, MayChangeOnAllRanksTogether) {
  const Orders orders = [](int, int step) { return step % 2 ? BlockOrder{2, 0} : BlockOrder{0, 1, 2}; };
  const auto one = expected_of_orders(2, orders);
  for (const auto& choice : {kFsdpOfBlocks, zero_stage(3), zero_stage(2)})
    for (const auto& rank : run_in_order(2, choice, orders, false)) EXPECT_LT(max_difference(rank.tensors, one), 1e-5);
}

/// Counts how often ranks meet to compare.
class CountingCollective : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  void agree(std::string_view operation, const std::string& call) override {
    ++meetings;
    ForwardingCollective::agree(operation, call);
  }
  int meetings = 0;
};

TEST(UnitOrder, IsComparedNoMoreOnceItIsKnown) {
  run_ranks(2, [](Collective& group) {
    CountingCollective counting(group);
    int before = 0;
    train_in_order(
        group, counting, kFsdpOfBlocks,
        [](int, int) {
          return BlockOrder{0, 1, 2};
        },
        false,
        [&](int step) {
          if (step == 2) before = counting.meetings;
        });
    EXPECT_GT(before, 0);
    EXPECT_EQ(counting.meetings, before);
  });
}

TEST(UnitOrder, ForwardThatThrewOnAllRanksIsFollowedByAnother) {
  run_ranks(2, [](Collective& group) {
    torch::manual_seed(3);
    OrderNet net;
    Trainee trainee(group, kFsdpOfBlocks, *net);
    for (int step = 0; step < 4; ++step) {
      const auto [x, y] = order_data(group.rank(), step);
      const auto call = [&, x = x] {
        auto h = net(x, BlockOrder{0, 1, 2});
        LEVIN_CHECK(step % 2 == 0, "no such step");
        return h;
      };
      if (step % 2)
        EXPECT_THROW(trainee.forward(call), Error);
      else
        trainee.backward(mse(trainee.forward(call), y));
    }
  });
}

TEST(UnitOrder, ForwardThatThrewOnOneRankAloneIsOneLine) {
  RanksOptions options;
  options.errors_expected = true;
  const auto results = run_ranks(
      2,
      [](Collective& group) {
        torch::manual_seed(3);
        OrderNet net;
        Trainee trainee(group, kFsdpOfBlocks, *net);
        for (int step = 0; step < 4; ++step) {
          const auto [x, y] = order_data(group.rank(), step);
          try {
            const auto output = trainee.forward([&, x = x] {
              auto h = net(x, BlockOrder{0});
              if (step == 2 && group.rank() == 1) throw std::runtime_error("out of memory");
              return net(x, BlockOrder{0, 1, 2});
            });
            trainee.backward(mse(output, y));
          } catch (const Error&) {
            throw;
          } catch (const std::exception&) {  // a loop that continues with the next batch
          }
        }
      },
      options);
  expect_line(results, {"ranks disagree", "rank 0 calls", "rank 1 calls", "after an exception"});
}

}  // namespace
}  // namespace levin::testing
