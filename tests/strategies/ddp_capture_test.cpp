// Passes of ddp as a CUDA graph would hold them, on the CPU, where what is captured is executed: against the reducer's,
// bit by bit.
#include "levin/strategies/ddp_capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/devices/graphs.h"
#include "levin/testing/error_of.h"
#include "levin/testing/scoped_variable.h"
#include "tests/strategies/training.h"

namespace levin::testing {
namespace {

using ::testing::HasSubstr;

/// What is done within its life is captured.
class Captured {
 public:
  explicit Captured(bool keeps_gradients) : scope_{&values_, &checks_, keeps_gradients, /*ranks_agree=*/true} {}

 private:
  levin::detail::RefreshedValues values_{at::kCPU};
  levin::detail::DeferredChecks checks_{at::kCPU};
  levin::detail::StepScope scope_;
  levin::detail::EnterStep enter_{scope_};
};

struct Case {
  const char* name;
  DdpOptions options = {};
  int world = 3;
  int accumulate = 1;
  bool keeps_gradients = false;
  std::function<bool(int rank, int step)> uses_b = [](int, int) { return true; };

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

void zero(const std::vector<Tensor>& parameters, bool keeps) {
  if (!keeps) return clear_grads(parameters);
  for (const auto& parameter : parameters)
    if (parameter.grad().defined()) parameter.grad().zero_();
}

/// Steps are captured once the buckets have been built, but for one in between.
std::vector<Tensor> train(Collective& group, const Case& c, bool captures) {
  torch::manual_seed(5);
  SmallNet net;
  Trainee trainee(group, c.options, *net, at::kCPU, "32-true", captures);
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  std::vector<Tensor> seen;
  for (int step = 0; step < 8; ++step) {
    for (int micro = 0; micro < c.accumulate; ++micro) {
      const auto [x, y] = boring_data(4, 32, static_cast<uint64_t>(1000 + step * 10 + micro + 100 * group.rank()));
      std::optional<Captured> captured;
      if (captures && step > 2 && step != 5) {
        EXPECT_TRUE(trainee.sync()->is_settled());
        EXPECT_EQ(trainee.sync()->prepare_capture(c.keeps_gradients), "");
        captured.emplace(c.keeps_gradients);
      }
      trainee.set_sync(micro + 1 == c.accumulate);
      const auto output = trainee.forward([&, x = x] { return net(x, c.uses_b(group.rank(), step)); });
      trainee.backward(mse(output, y));
    }
    for (const auto& parameter : net->parameters())
      if (parameter.grad().defined()) seen.push_back(parameter.grad().clone());
    optimizer.step();
    zero(net->parameters(), c.keeps_gradients);
  }
  for (const auto& parameter : net->parameters()) seen.push_back(parameter.detach().clone());
  return seen;
}

class DdpCapture : public ::testing::TestWithParam<Case> {
 protected:
  const ScopedVariable with_itself_{"LEVIN_TEST_GROUP_OF_ONE", "1"};
};
class DdpCapturedPass : public ::testing::Test {
 protected:
  const ScopedVariable with_itself_{"LEVIN_TEST_GROUP_OF_ONE", "1"};
};

TEST_P(DdpCapture, EqualsTheReducer) {
  const auto& c = GetParam();
  run_ranks(c.world, [&](Collective& group) {
    const auto eager = train(group, c, false), captured = train(group, c, true);
    ASSERT_EQ(eager.size(), captured.size());
    for (size_t i = 0; i < eager.size(); ++i) EXPECT_TRUE(at::equal(eager[i], captured[i])) << i;
  });
}

INSTANTIATE_TEST_SUITE_P(
    Ddp, DdpCapture,
    ::testing::Values(Case{"plain"}, Case{"one_rank", {}, 1}, Case{"kept", {}, 3, 1, true},
                      Case{"accumulation", {}, 2, 3}, Case{"accumulation_kept", {}, 3, 3, true},
                      Case{"accumulation_kept_beside_the_buckets", {.gradient_as_bucket_view = false}, 2, 2, true},
                      Case{"no_bucket_view", {.gradient_as_bucket_view = false}},
                      Case{"small_buckets", {.bucket_cap_mb = 0.0005}}, Case{"bf16", {.comm_hook = "bf16"}},
                      Case{"fp16", {.comm_hook = "fp16"}}, Case{"find_unused", {.find_unused_parameters = true}},
                      Case{"static_graph", {.static_graph = true, .bucket_cap_mb = 0.0005}},
                      Case{"static_graph_accumulation", {.static_graph = true}, 2, 2},
                      Case{"static_graph_unused", {.static_graph = true}, 2, 1, false, [](int, int) { return false; }},
                      Case{"static_graph_used_elsewhere",
                           {.static_graph = true},
                           2,
                           1,
                           false,
                           [](int rank, int) { return rank == 1; }},
                      Case{"static_graph_used_elsewhere_no_bucket_view",
                           {.static_graph = true, .gradient_as_bucket_view = false},
                           2,
                           1,
                           false,
                           [](int rank, int) { return rank == 1; }}),
    [](const auto& instance) { return instance.param.name; });

std::string captured_error(Collective& group, const DdpOptions& options, bool uses_b) {
  torch::manual_seed(5);
  SmallNet net;
  Trainee trainee(group, options, *net, at::kCPU, "32-true", true);
  const auto pass = [&](bool used) {
    clear_grads(net->parameters());
    trainee.backward(trainee.forward([&] { return net(torch::ones({2, 32}), used); }).sum());
  };
  for (int i = 0; i < 2; ++i) pass(true);
  const auto line = error_of([&] {
    const Captured captured(false);
    pass(uses_b);
  });
  trainee.sync()->capture_failed();
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined() || !uses_b);
  pass(true);  // the reducer is as before
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(parameter.grad().defined());
  return line;
}

TEST_F(DdpCapturedPass, AParameterWithoutAGradientEndsTheCapture) {
  run_ranks(2, [](Collective& group) {
    EXPECT_THAT(captured_error(group, {}, false), HasSubstr("[compile] parameter \"b.weight\" got no gradient"));
    EXPECT_THAT(captured_error(group, {.find_unused_parameters = true}, false),
                HasSubstr("parameter \"b.weight\" got no gradient on this rank, and ranks exchange on the host"));
  });
}

TEST_F(DdpCapturedPass, OfOneRankAnUnusedParameterHasNoGradient) {
  run_ranks(1, [](Collective& group) {
    EXPECT_EQ(captured_error(group, {.find_unused_parameters = true}, false), "no error");
  });
}

TEST_F(DdpCapturedPass, GradientsOfAnotherLayoutThanTheirParameter) {
  run_ranks(3, [](Collective& group) {
    for (const bool compressed : {false, true})
      for (const bool views : {false, true}) {
        const auto weight = torch::zeros({2, 3}, at::requires_grad());
        const auto memory = torch::zeros({6});
        levin::detail::CapturedPassPlan plan{.names = {"weight"},
                                             .params = {weight},
                                             .buckets = {{memory, {0}, {memory.view({2, 3})}}},
                                             .uses = {1},
                                             .gradients_are_views = views};
        if (compressed) plan.travels_as = at::kBFloat16;
        weight.mutable_grad() = torch::arange(6.0).reshape({3, 2}).t() * (group.rank() + 1);
        ASSERT_NE(weight.grad().stride(0), 3);
        auto expected = weight.grad().contiguous() / group.size();
        if (compressed) expected = weight.grad().contiguous().to(at::kBFloat16).div_(group.size());
        group.all_reduce(expected);
        const Captured captured(false);
        levin::detail::CapturedPass pass(group, plan);
        pass.ready(0);
        pass.finish();
        EXPECT_TRUE(at::allclose(weight.grad(), expected.to(at::kFloat), 1e-2, 0));
        EXPECT_EQ(weight.grad().is_alias_of(memory), views);
      }
  });
}

// Its version says that a gradient is added to.
TEST_F(DdpCapturedPass, GradientsThatAreReplacedAreNotWrittenTo) {
  run_ranks(2, [](Collective& group) {
    SmallNet net;
    Trainee trainee(group, "ddp", *net, at::kCPU, "32-true", true);
    const auto pass = [&] { trainee.backward(trainee.forward([&] { return net(torch::ones({2, 32})); }).sum()); };
    for (int i = 0; i < 2; ++i) {
      clear_grads(net->parameters());
      pass();
    }
    std::vector<Tensor> before;
    std::vector<int64_t> versions;
    for (const auto& parameter : net->parameters()) {
      before.push_back(parameter.grad());
      versions.push_back(parameter.grad()._version());
    }
    const Captured captured(false);
    clear_grads(net->parameters());
    pass();
    for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i]._version(), versions[i]);
    const auto parameters = net->parameters();
    for (const auto& parameter : parameters)
      EXPECT_TRUE(parameter.grad().is_alias_of(trainee.sync()->gradient_memory(parameter)));
  });
}

}  // namespace
}  // namespace levin::testing
