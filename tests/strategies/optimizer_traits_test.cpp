// What an optimizer says of itself decides where it may be used, and what it is expected to keep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/memory/estimate.h"
#include "levin/optim/optim.h"
#include "tests/strategies/sharding_net.h"

namespace levin::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace to = torch::optim;

/// An optimizer of a user, by way of torch's base class.
struct SignSgd : to::Optimizer {
  explicit SignSgd(const std::vector<Tensor>& params)
      : Optimizer({to::OptimizerParamGroup(params)}, std::make_unique<to::SGDOptions>(0.01)) {}
  Tensor step(LossClosure closure = nullptr) override {
    (void)closure;
    for (auto& param : param_groups()[0].params())
      if (param.grad().defined()) param.data().sub_(param.grad().sign(), 0.01);
    return {};
  }
};

struct DeclaredSignSgd final : SignSgd, optim::DeclaresTraits {
  using SignSgd::SignSgd;
  OptimizerTraits traits() const override { return {.elementwise = true}; }
};

/// Steps by the norm of whole tensors, and is derived from one that does not.
struct Lars final : to::SGD {
  using to::SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override { return to::SGD::step(std::move(closure)); }
};

/// ... and one by way of Levin's.
struct OwnSgd : OptimizerImpl {
  explicit OwnSgd(std::vector<Tensor> p) : list(std::move(p)) {}
  std::string name() const override { return "OwnSgd"; }
  void step() override {
    const at::NoGradGuard no_grad;
    for (auto& param : list)
      if (param.grad().defined()) {
        EXPECT_EQ(param.grad().scalar_type(), param.scalar_type());
        param.sub_(param.grad(), lr);
      }
  }
  void zero_grad(bool) override {
    for (auto& param : list) param.mutable_grad().reset();
  }
  size_t num_groups() const override { return 1; }
  std::vector<Tensor>& params(size_t) override { return list; }
  double* find_hyper(size_t, std::string_view hyper) override { return hyper == "lr" ? &lr : nullptr; }
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict&) override {}
  std::vector<Tensor> list;
  double lr = 0.1;
};
struct DeclaredSgd final : OwnSgd {
  using OwnSgd::OwnSgd;
  std::optional<OptimizerTraits> traits() const override { return OptimizerTraits{.elementwise = true}; }
};

std::vector<StrategyChoice> sharded() {
  return {FsdpOptions{}, ZeroOptions{.stage = 1}, ZeroOptions{.stage = 2}, ZeroOptions{.stage = 3},
          GeminiOptions{.memory_budget = 1 << 26}};
}

/// The line with which it is refused; empty when it is taken, and a step of it was done.
std::string refusal(Collective& group, const StrategyChoice& choice,
                    const std::function<Optimizer(std::vector<Tensor>)>& make, const char* precision = "32-true") {
  torch::manual_seed(1);
  ShardNet net(ShardNetOptions{.blocks = 1});
  auto optimizer = make(net->parameters());
  Trainee trainee(group, choice, *net, at::kCPU, precision);
  try {
    optimizer = trainee.strategy().setup_optimizer(optimizer);
  } catch (const Error& error) {
    return error.what();
  }
  const auto call = [&] {
    std::optional<Autocast> autocast;
    if (std::string(precision) == "bf16-mixed") autocast.emplace(at::kCPU, at::kBFloat16);
    return net(at::ones({2, 10}));
  };
  const auto before = mse(trainee.forward(call).to(at::kFloat), at::zeros({2, 10}));
  trainee.backward(before);
  optimizer.step();
  const at::NoGradGuard no_grad;
  const auto after = mse(trainee.forward(call).to(at::kFloat), at::zeros({2, 10}));
  EXPECT_LT(after.item<double>(), before.item<double>()) << choice.name() << " " << optimizer.name();
  return {};
}

TEST(OptimizerTraits, DecideWhatMayStepShards) {
  const auto own = [](auto params) { return Optimizer(std::make_shared<OwnSgd>(params)); };
  const auto declared = [](auto params) { return Optimizer(std::make_shared<DeclaredSgd>(params)); };
  const auto sign = [](auto params) { return optim::adapt(SignSgd(params)); };
  const auto declared_sign = [](auto params) { return optim::adapt(DeclaredSignSgd(params)); };
  const auto lars = [](auto params) { return optim::adapt(Lars(params, to::SGDOptions(0.1))); };
  const auto adafactor = [](auto params) -> Optimizer { return optim::Adafactor(params); };
  const auto lamb = [](auto params) -> Optimizer { return optim::Lamb(params); };
  const auto lamb_in_backward = [](auto params) -> Optimizer {
    return optim::OptimizerInBackward(optim::Lamb(params));
  };
  const auto lbfgs = [](auto params) { return optim::adapt(to::LBFGS(params)); };
  run_ranks(2, [&](Collective& group) {
    for (const auto& choice : sharded()) {
      EXPECT_THAT(refusal(group, choice, own),
                  HasSubstr("OwnSgd does not say whether it steps each element separately"));
      EXPECT_THAT(refusal(group, choice, own), HasSubstr("traits() returns {.elementwise = true}"));
      EXPECT_THAT(refusal(group, choice, sign), HasSubstr("SignSgd does not say"));
      EXPECT_THAT(refusal(group, choice, lars), HasSubstr("Lars does not say"));
      EXPECT_THAT(refusal(group, choice, adafactor), HasSubstr("Adafactor steps by figures of full parameters"));
      EXPECT_THAT(refusal(group, choice, lbfgs), HasSubstr("LBFGS steps by figures of full parameters"));
      EXPECT_THAT(refusal(group, choice, lamb_in_backward), HasSubstr("Lamb steps by figures of full parameters"));
      for (const char* precision : {"32-true", "bf16-mixed"}) {
        EXPECT_EQ(refusal(group, choice, lamb, precision), "");
        EXPECT_EQ(refusal(group, choice, declared, precision), "");
        EXPECT_EQ(refusal(group, choice, declared_sign, precision), "");
        EXPECT_EQ(refusal(
                      group, choice, [](auto p) { return optim::adapt(to::Adagrad(p)); }, precision),
                  "");
      }
    }
    for (const auto& make :
         std::vector<std::function<Optimizer(std::vector<Tensor>)>>{own, sign, lars, adafactor, lamb})
      EXPECT_EQ(refusal(group, "ddp", make), "");
    SingleCollective alone;
    EXPECT_EQ(refusal(alone, "single_device", own), "");
    EXPECT_EQ(refusal(alone, FsdpOptions{}, own), "");
  });
}

std::vector<std::string> slot_names(const Optimizer& optimizer) {
  std::vector<std::string> names;
  for (const auto& slot : optimizer.traits()->slots({4, 3}, at::kFloat)) names.push_back(slot.name);
  return names;
}

/// What the optimizer really keeps for a matrix after a step, by name.
std::vector<std::string> kept_names(Optimizer optimizer) {
  auto& param = optimizer.params(0)[0];
  param.mutable_grad() = at::ones_like(param);
  optimizer.step();
  std::vector<std::string> names;
  const auto saved = optimizer.state_dict();
  for (const auto& [index, state] : saved.at("state").to_dict())
    for (const auto& [name, value] : state.to_dict())
      if (value.is_tensor()) names.push_back(name);
  return names;
}

TEST(OptimizerTraits, SayWhatIsKept) {
  const auto param = [] { return std::vector<Tensor>{at::ones({4, 3}).requires_grad_()}; };
  EXPECT_THAT(slot_names(optim::AdamW(param())), ElementsAre("step", "exp_avg", "exp_avg_sq"));
  EXPECT_THAT(slot_names(optim::Adafactor(param())), ElementsAre("step", "row_var", "col_var"));
  EXPECT_THAT(slot_names(optim::SGD(param(), {.momentum = 0.9})), ElementsAre("momentum_buffer"));
  const std::vector<Optimizer> all{optim::Adam(param(), {.amsgrad = true}),
                                   optim::AdamW(param()),
                                   optim::AdamW8bit(param()),
                                   optim::SGD(param()),
                                   optim::SGD(param(), {.momentum = 0.9}),
                                   optim::Adagrad(param()),
                                   optim::Lion(param()),
                                   optim::Lamb(param()),
                                   optim::Adafactor(param())};
  for (const auto& optimizer : all)
    EXPECT_THAT(kept_names(optimizer), ::testing::UnorderedElementsAreArray(slot_names(optimizer))) << optimizer.name();
  const std::vector<Optimizer> torchs{
      optim::adapt(to::Adam(param(), to::AdamOptions().amsgrad(true))), optim::adapt(to::AdamW(param())),
      optim::adapt(to::SGD(param(), to::SGDOptions(0.1).momentum(0.9))),
      optim::adapt(to::RMSprop(param(), to::RMSpropOptions().momentum(0.9))), optim::adapt(to::Adagrad(param()))};
  for (const auto& optimizer : torchs) {
    auto said = slot_names(optimizer);
    for (const auto& name : kept_names(optimizer))
      if (name != "step") {
        EXPECT_THAT(said, ::testing::Contains(name)) << optimizer.name();
      }
  }
}

TEST(OptimizerTraits, AreWhatAnEstimateCounts) {
  const auto estimate = [](MemoryQuestion question) {
    question.device = at::kCPU;
    return estimate_memory([] { return nn::Linear(64, 64); }, [](auto& net, const Batch& b) { return net(b["x"]); },
                           [](const Tensor& y, const Batch&) { return y.sum(); }, Batch{{"x", at::ones({2, 64})}},
                           question)
        .optimizer;
  };
  constexpr int64_t kNumel = 64 * 64 + 64;
  EXPECT_EQ(estimate({.optimizer = "sgd"}), 0);
  EXPECT_EQ(estimate({.optimizer = "sgd_momentum"}), 4 * kNumel);
  EXPECT_EQ(estimate({.optimizer = "adam"}), 8 * kNumel + 8);
  EXPECT_EQ(estimate({.optimizer = "lamb"}), 8 * kNumel + 8);
  const OptimizerTraits mine{.elementwise = true, .slots = [](at::IntArrayRef sizes, c10::ScalarType dtype) {
                               return std::vector<OptimizerSlot>(3, {"slot", sizes.vec(), dtype});
                             }};
  EXPECT_EQ(estimate({.optimizer_traits = mine}), 12 * kNumel);
  EXPECT_THROW(estimate({.optimizer_traits = OptimizerTraits{}}), Error);
}

}  // namespace
}  // namespace levin::testing
