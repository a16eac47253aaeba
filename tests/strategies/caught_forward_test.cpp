// An exception in forward that one rank alone meets, and catches: every rank ends with a line within seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

/// A unit that throws in the middle of its forward when it is told to.
struct TroubledBlockImpl : torch::nn::Module {
  TroubledBlockImpl() {
    first = register_module("first", nn::Linear(6, 6));
    second = register_module("second", nn::Linear(6, 6));
  }
  Tensor forward(const Tensor& x, bool trouble) {
    auto h = first(x);
    if (trouble) throw std::runtime_error("out of memory");
    return second(torch::tanh(h));
  }
  nn::Linear first{nullptr}, second{nullptr};
};
LEVIN_MODULE(TroubledBlock);

/// Continues without a block that has thrown.
struct CatchingNetImpl : torch::nn::Module {
  CatchingNetImpl() {
    for (int i = 0; i < 3; ++i) blocks.push_back(register_module("block" + std::to_string(i), TroubledBlock()));
    head = register_module("head", nn::Linear(6, 2));
  }
  Tensor forward(const Tensor& x, bool trouble, bool catches) {
    auto h = x;
    for (size_t i = 0; i < blocks.size(); ++i) {
      try {
        h = blocks[i](h, trouble && i == 1);
      } catch (const Error&) {
        throw;
      } catch (const std::exception&) {
        if (!catches) throw;
      }
    }
    return head(h);
  }
  std::vector<TroubledBlock> blocks;
  nn::Linear head{nullptr};
};
LEVIN_MODULE(CatchingNet);

enum class Catches { kInsideForward, kOutside };

/// What ends each of two ranks when rank 1 has trouble in one step; 0: when nothing is known of the order yet.
std::vector<RankResult> run_with_trouble(const StrategyChoice& choice, Catches where, int troubled_step) {
  RanksOptions options;
  options.errors_expected = true;
  options.collective.timeout = std::chrono::seconds(100);
  return run_ranks(
      2,
      [&](Collective& group) {
        torch::manual_seed(3);
        CatchingNet net;
        Trainee trainee(group, choice, *net);
        for (int step = 0; step < 5; ++step) {
          const auto [x, y] = boring_data(4, 6, static_cast<uint64_t>(100 * step + group.rank()));
          try {
            const bool trouble = step == troubled_step && group.rank() == 1;
            const auto output =
                trainee.forward([&, in = x] { return net(in, trouble, where == Catches::kInsideForward); });
            trainee.backward(mse(output, y));
          } catch (const Error&) {
            throw;
          } catch (const std::exception&) {  // a loop that continues with the next batch
          }
        }
        group.barrier("end");
      },
      options);
}

class CaughtForward : public ::testing::TestWithParam<int> {};

TEST_P(CaughtForward, IsALineOnEveryRank) {
  const auto policy = policy::by_class<TroubledBlock>();
  const std::vector<StrategyChoice> choices{
      FsdpOptions{.auto_wrap_policy = policy},
      ZeroOptions{.stage = 3, .stage3_param_persistence_threshold = 0, .auto_wrap_policy = policy}};
  for (const auto& choice : choices)
    for (const auto where : {Catches::kInsideForward, Catches::kOutside}) {
      const auto results = run_with_trouble(choice, where, GetParam());
      for (const auto& result : results) {
        EXPECT_FALSE(result.timed_out);
        EXPECT_EQ(result.signal, 0);
        EXPECT_EQ(result.error, results[0].error);
        EXPECT_THAT(result.error, HasSubstr("ranks disagree: rank 0 calls all_gather of"));
        EXPECT_THAT(result.error, HasSubstr(", rank 1 calls "));
        EXPECT_LT(result.seconds, 40);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Steps, CaughtForward, ::testing::Values(0, 3));

}  // namespace
}  // namespace levin::testing
