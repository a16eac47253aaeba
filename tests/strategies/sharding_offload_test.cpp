// Gradients that leave for host memory one by one: nothing else of a training run changes.
#include <gtest/gtest.h>

#include "levin/distributed/single.h"
#include "levin/strategies/sharding/group.h"
#include "levin/strategies/sharding/group_memory.h"
#include "levin/strategies/zero.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

using levin::detail::GroupOptions;
using levin::detail::kLeavesAlone;
using levin::detail::Lanes;
using levin::detail::ShardedParam;
using levin::detail::ShardGroup;

/// Two large parameters and a small one, in host memory.
class OffloadedGroup : public ::testing::Test {
 protected:
  OffloadedGroup() {
    std::vector<ShardedParam> params;
    for (const int64_t rows : {256, 300, 2}) {
      params.push_back({.name = std::to_string(rows), .param = at::randn({rows, 300}).requires_grad_()});
      ones_.push_back(at::ones({rows, 300}));
    }
    const auto nobody = std::make_shared<SingleCollective>();
    group_ = std::make_unique<ShardGroup>("group", std::move(params), nobody, nobody, std::make_shared<Lanes>(at::kCPU),
                                          GroupOptions{.offload = true});
  }
  Tensor& grad(size_t i) { return group_->params()[i].param.mutable_grad(); }
  void begin_backward() {
    group_->show_full();
    group_->take_grads();
    group_->progress = {.used = true};
  }
  void end_backward() {
    group_->begin_reduce();
    group_->progress.reduced = true;
    group_->finish_reduce_on_host();
    group_->show_shards();
    group_->give_grads();
  }
  std::vector<Tensor> ones_;
  std::unique_ptr<ShardGroup> group_;
};

TEST_F(OffloadedGroup, SendsLargeGradientsAsTheyComeAndTheRestAtTheEnd) {
  begin_backward();
  for (size_t i = 0; i < 3; ++i) {
    grad(i) = ones_[i] * static_cast<double>(i + 1);
    group_->send_grad(i);
    EXPECT_EQ(grad(i).defined(), i == 2);  // the others have left
  }
  end_backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(grad(i), ones_[i] * static_cast<double>(i + 1))) << i;
}

TEST_F(OffloadedGroup, AddsToTheGradientsOfTheBackwardBefore) {
  for (int backward = 0; backward < 3; ++backward) {
    begin_backward();
    for (size_t i = 0; i < 3; ++i) {
      grad(i) = ones_[i].clone();
      if (backward != 1) group_->send_grad(i);
    }
    end_backward();
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(grad(i), ones_[i] * 3)) << i;
}

TEST_F(OffloadedGroup, GivesZerosForParametersWithoutAGradient) {
  begin_backward();
  grad(1) = ones_[1].clone();
  group_->send_grad(1);
  end_backward();
  EXPECT_EQ(grad(0).abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(grad(1), ones_[1]));
  EXPECT_EQ(grad(2).abs().max().item<double>(), 0);
}

TEST_F(OffloadedGroup, AddsAGradientThatComesAfterTheFirstHasLeft) {
  begin_backward();
  for (int time = 0; time < 2; ++time) {
    grad(0) = ones_[0].clone();
    group_->send_grad(0);
  }
  EXPECT_TRUE(grad(0).defined());
  end_backward();
  EXPECT_TRUE(at::equal(grad(0), ones_[0] * 2));
}

TEST_F(OffloadedGroup, ForgetsWhatAFailedPassHasSent) {
  begin_backward();
  grad(0) = ones_[0].clone();
  group_->send_grad(0);
  group_->abandon();
  EXPECT_FALSE(grad(0).defined());
  begin_backward();
  grad(1) = ones_[1].clone();
  group_->send_grad(1);
  end_backward();
  EXPECT_EQ(grad(0).abs().max().item<double>(), 0);
  EXPECT_TRUE(at::equal(grad(1), ones_[1]));
}

TEST_F(OffloadedGroup, StepsFullParametersAndCopiesThemBack) {
  std::vector<Tensor> expected;
  for (const auto& param : group_->params()) expected.push_back(param.shard - 0.5);
  begin_backward();
  group_->set_update([&] {
    const at::NoGradGuard no_grad;
    for (auto& param : group_->params()) {
      param.param.sub_(param.param.grad(), 0.5);
      param.param.mutable_grad().reset();
    }
  });
  ASSERT_TRUE(group_->updates_in_place());
  group_->finish_gather();
  for (size_t i = 0; i < 3; ++i) {
    grad(i) = ones_[i].clone();
    group_->send_grad(i);
    EXPECT_TRUE(grad(i).defined());  // it does not leave the device
  }
  end_backward();
  group_->release();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(at::equal(group_->params()[i].param, expected[i])) << i;
    EXPECT_FALSE(grad(i).defined()) << i;
  }
}

TEST_F(OffloadedGroup, IsReducedWhereGradientsOfABackwardBeforeAreThere) {
  begin_backward();
  for (size_t i = 0; i < 3; ++i) grad(i) = ones_[i].clone();
  end_backward();
  begin_backward();
  group_->set_update([] { FAIL() << "gradients in host memory would be lost"; });
  EXPECT_FALSE(group_->updates_in_place());
  for (size_t i = 0; i < 3; ++i) grad(i) = ones_[i].clone();
  end_backward();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(grad(i), ones_[i] * 2)) << i;
}

TEST_F(OffloadedGroup, SendsNothingThatNoReductionFollows) {
  begin_backward();
  group_->progress.used = false;
  grad(0) = ones_[0].clone();
  group_->send_grad(0);
  EXPECT_TRUE(grad(0).defined());
}

TEST(Offload, GathersFromShardsThatTheDeviceKeeps) {
  const auto nobody = std::make_shared<SingleCollective>();
  for (const std::optional<c10::ScalarType> computed :
       {std::optional<c10::ScalarType>(), std::optional(at::kBFloat16)}) {
    std::vector<ShardedParam> params{{.name = "weight", .param = at::ones({3, 4}).requires_grad_()}};
    ShardGroup group("group", std::move(params), nobody, nobody, std::make_shared<Lanes>(at::kCPU),
                     GroupOptions{.offload = true, .keeps_device_shards = true, .param_dtype = computed});
    const auto& param = group.params()[0];
    const auto gathered = [&] {
      group.finish_gather();
      const auto value = param.full.to(at::kFloat).mean().item<double>();
      group.release();
      return value;
    };
    EXPECT_EQ(gathered(), 1);
    param.shard.mul_(2);
    EXPECT_EQ(gathered(), 1);  // for backward, from what forward has sent
    group.renew();             // the next forward
    EXPECT_EQ(gathered(), 2);
  }
}

TEST(Offload, PinsThePartThatIsAskedFor) {
  const auto plan = [](bool optimizer, bool param, bool with_param) {
    ZeroOptions options{.stage = 3};
    options.offload_optimizer = {.device = "cpu", .pin_memory = optimizer};
    options.offload_param = {.device = with_param ? "cpu" : "none", .pin_memory = param};
    return ZeroStrategy(options).plan();
  };
  for (const bool optimizer : {false, true})
    for (const bool param : {false, true}) {
      EXPECT_EQ(plan(optimizer, param, true).pin_memory, param);
      EXPECT_EQ(plan(optimizer, param, false).pin_memory, optimizer);
      EXPECT_EQ(plan(optimizer, param, true).pin_gradients, optimizer);
    }
  EXPECT_TRUE(plan(true, true, false).keeps_device_shards);
  EXPECT_FALSE(plan(true, true, true).keeps_device_shards);
}

TEST(Offload, SendsGradientsWhileTheirUnitIsStillDifferentiated) {
  for (const bool offload : {false, true}) {
    SingleCollective group;
    ShardNet net(ShardNetOptions{.width = 256, .hidden = 600});
    // In float32 on the device, in bfloat16 while it computes: without offload something is left to be reduced, too.
    Trainee trainee(group, FsdpOptions{.auto_wrap_policy = policy::by_class<ShardBlock>(), .cpu_offload = offload},
                    *net, at::kCPU, "bf16-mixed");
    auto& block = net->blocks[1];
    bool weight = false, bias = false, seen = false;
    // The norm is differentiated last.
    block->norm->weight.register_hook([&](const Tensor&) {
      seen = true;
      weight = block->down->weight.grad().defined();
      bias = block->down->bias.grad().defined();
    });
    const auto loss = trainee.forward([&] { return net(at::ones({2, 256}, at::kBFloat16)); }).to(at::kFloat).sum();
    trainee.backward(loss);
    EXPECT_TRUE(seen);
    EXPECT_TRUE(bias);
    EXPECT_EQ(weight, !offload);
    EXPECT_TRUE(block->down->weight.grad().defined());
  }
}

TEST(Offload, FingerprintsTellValuesApart) {
  const auto values = at::randn({640}, at::kBFloat16);
  const auto print = levin::detail::fingerprint(values);
  EXPECT_EQ(levin::detail::fingerprint(values.clone()), print);
  EXPECT_NE(levin::detail::fingerprint(-values), print);
  EXPECT_NE(levin::detail::fingerprint(values.flip(0).contiguous()), print);
  for (int64_t first = 0; first < 64; ++first)
    for (int64_t second = first + 1; second < 64; ++second) {
      auto other = values.clone();
      for (const auto i : {first, second}) other[i].neg_();
      EXPECT_NE(levin::detail::fingerprint(other), print) << first << " and " << second;
    }
}

/// Units that stay on the device are copied again when somebody has changed them in host memory.
TEST(Offload, NoticesWhatIsChangedBetweenSteps) {
  at::set_num_threads(1);
  const auto train = [](const StrategyChoice& choice) {
    SingleCollective group;
    torch::manual_seed(5);
    ShardNet net(ShardNetOptions{.width = 256, .hidden = 300, .blocks = 5});
    Optimizer optimizer = optim::SGD(net->parameters(), {.lr = 0.01});
    Trainee trainee(group, choice, *net);
    optimizer = trainee.strategy().setup_optimizer(optimizer);
    std::vector<Tensor> losses;
    for (int step = 0; step < 6; ++step) {
      const auto loss = trainee.forward([&] { return net(at::ones({2, 256})); }).square().mean();
      trainee.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.detach());
      const at::NoGradGuard no_grad;
      if (step == 2) net->blocks[1]->up->weight.data().mul_(0.5);  // leaves no trace in versions
      if (step == 3) net->blocks[2]->down->weight.set_data(at::ones({256, 300}) * 0.01);
      if (step == 4) losses.push_back(trainee.forward([&] { return net(at::ones({2, 256})); }).mean());
    }
    return losses;
  };
  const auto blocks = policy::by_class<ShardBlock>();
  const auto offloaded =
      train(FsdpOptions{.auto_wrap_policy = blocks, .cpu_offload = true, .optimizer_in_backward = true});
  EXPECT_EQ(max_difference(offloaded, train("single_device")), 0);
}

TEST(Offload, StepsEveryUnitInBackwardWithAndWithoutState) {
  for (const double momentum : {0.0, 0.9}) {
    SingleCollective group;
    ShardNet net(ShardNetOptions{.width = 256, .hidden = 300});
    Optimizer optimizer = optim::SGD(net->parameters(), {.lr = 0.1, .momentum = momentum});
    Trainee trainee(
        group,
        FsdpOptions{
            .auto_wrap_policy = policy::by_class<ShardBlock>(), .cpu_offload = true, .optimizer_in_backward = true},
        *net);
    optimizer = trainee.strategy().setup_optimizer(optimizer);
    auto& block = net->blocks[1];
    const auto before = block->up->weight.detach().clone();
    bool waits = false;
    // The stem is differentiated last, when the block has been stepped. With state a thread does it in its own time.
    if (momentum == 0)
      net->stem->weight.register_hook([&](const Tensor&) { waits = block->up->weight.grad().defined(); });
    trainee.backward(trainee.forward([&] { return net(at::ones({2, 256})); }).sum());
    optimizer.step();
    EXPECT_FALSE(waits);
    EXPECT_GT((block->up->weight - before).abs().max().item<double>(), 0);
    EXPECT_FALSE(block->up->weight.grad().defined());
  }
}

class ShardingOffload : public ::testing::TestWithParam<ShardCase> {};

TEST_P(ShardingOffload, EqualsOneProcessBitForBit) {
  at::set_num_threads(1);
  auto group = std::make_shared<SingleCollective>();
  const auto& c = GetParam();
  ASSERT_GE(c.net.width * c.net.hidden * 4, kLeavesAlone);
  const auto offloaded = train_sharded(*group, c, c.choice), plain = train_sharded(*group, c, "single_device");
  ASSERT_EQ(offloaded.size(), plain.size());
  EXPECT_EQ(max_difference(offloaded, plain), 0);
}

std::vector<ShardCase> offload_cases() {
  const auto blocks = policy::by_class<ShardBlock>();
  const FsdpOptions offload{.auto_wrap_policy = blocks, .cpu_offload = true};
  auto stepped = offload, lean = offload;
  stepped.optimizer_in_backward = true;
  lean.activation_checkpointing_policy = blocks;
  lean.optimizer_in_backward = true;
  const ShardNetOptions large{.width = 256, .hidden = 300, .blocks = 5};
  auto twice = large, tied = large, frozen = large;
  twice.twice = true;
  tied.tied = "across";
  frozen.frozen = "first";
  std::vector<ShardCase> cases{
      {.name = "plain", .choice = offload},
      {.name = "accumulation", .choice = offload, .accumulate = 3},
      {.name = "accumulation_reduced", .choice = offload, .accumulate = 3, .no_sync = false},
      {.name = "in_backward", .choice = stepped},
      {.name = "in_backward_accumulation", .choice = stepped, .accumulate = 3},
      {.name = "checkpointed_in_backward", .choice = lean},
      {.name = "twice", .choice = lean, .net = twice},
      {.name = "tied", .choice = offload, .net = tied},
      {.name = "frozen", .choice = lean, .net = frozen},
      {.name = "momentum", .choice = lean, .adamw = false},
      {.name = "stateless", .choice = lean, .adamw = false, .momentum = 0},
      {.name = "stateless_accumulation", .choice = stepped, .accumulate = 3, .adamw = false, .momentum = 0},
      {.name = "stateless_twice", .choice = lean, .net = twice, .adamw = false, .momentum = 0},
      {.name = "stateless_tied", .choice = stepped, .net = tied, .adamw = false, .momentum = 0},
      {.name = "stateless_frozen", .choice = lean, .net = frozen, .adamw = false, .momentum = 0},
      {.name = "stateless_stage_3",
       .choice = ZeroOptions{.stage = 3,
                             .offload_optimizer = {.device = "cpu"},
                             .offload_param = {.device = "cpu"},
                             .auto_wrap_policy = blocks,
                             .optimizer_in_backward = true},
       .adamw = false,
       .momentum = 0},
      {.name = "stage_2",
       .choice = ZeroOptions{.stage = 2, .offload_optimizer = {.device = "cpu"}, .auto_wrap_policy = blocks}},
      {.name = "stage_3",
       .choice = ZeroOptions{.stage = 3,
                             .offload_optimizer = {.device = "cpu"},
                             .offload_param = {.device = "cpu"},
                             .auto_wrap_policy = blocks}}};
  for (auto& c : cases) {
    c.world = 1;
    if (c.net.width < large.width) c.net = large;
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Cases, ShardingOffload, ::testing::ValuesIn(offload_cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace levin::testing
