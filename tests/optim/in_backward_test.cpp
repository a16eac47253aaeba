// Parameters that are stepped during backward, and what that rules out.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "fixtures.h"
#include "levin/optim/optim.h"
#include "levin/testing/capture.h"

namespace levin::optim {
namespace {

using namespace testing;
using ::testing::HasSubstr;

torch::nn::Sequential make_net() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(6, 80), torch::nn::Tanh(), torch::nn::Linear(80, 80),
                               torch::nn::Tanh(), torch::nn::Linear(80, 1));
}
at::Tensor loss_of(torch::nn::Sequential& net, uint32_t step) {
  return net->forward(filled({4, 6}, at::kFloat, 9, step)).square().mean();
}

/// Calls a function when a gradient is whole.
struct Spy : torch::autograd::PostAccumulateGradHook {
  explicit Spy(std::function<void(const at::Tensor&)> f) : call(std::move(f)) {}
  void operator()(const at::Tensor& param) override { call(param); }
  std::function<void(const at::Tensor&)> call;
};
void spy(const at::Tensor& param, std::function<void(const at::Tensor&)> f) {
  torch::autograd::impl::set_post_acc_grad_hooks(param, std::make_unique<Spy>(std::move(f)));
}
bool has_hook(const at::Tensor& param) {
  return torch::autograd::impl::post_acc_grad_hooks(param) != nullptr;
}

TEST(InBackward, EqualsStepsAfterBackwardAndHoldsOneGradient) {
  auto net = make_net(), reference = make_net();
  int most = 0, calls = 0;
  const auto params = net->parameters();
  for (const auto& param : params)  // hooks that are there are kept, and see the gradient
    spy(param, [&](const at::Tensor& hooked) {
      ++calls;
      EXPECT_TRUE(hooked.grad().defined());
      int now = 0;
      for (const auto& other : params) now += other.grad().defined();
      most = std::max(most, now);
    });
  OptimizerInBackward opt(AdamW(params, {.lr = 0.01}));
  AdamW plain(reference->parameters(), {.lr = 0.01});
  CosineAnnealingLR schedule(opt, {.t_max = 10}), plain_schedule(plain, {.t_max = 10});
  for (uint32_t step = 1; step <= 5; ++step) {
    loss_of(net, step).backward();
    for (const auto& param : params) EXPECT_FALSE(param.grad().defined());
    opt.step();
    opt.zero_grad();
    schedule.step();
    loss_of(reference, step).backward();
    plain.step();
    plain.zero_grad();
    plain_schedule.step();
  }
  EXPECT_EQ(most, 1);
  EXPECT_EQ(calls, 30);
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(torch::equal(params[i], reference->parameters()[i])) << i;
  EXPECT_EQ(opt.name(), "AdamW");
  AdamW other(reference->parameters());
  other.load_state_dict(opt.state_dict());
  EXPECT_EQ(other.state_dict().at("state").to_dict().at("0").to_dict().at("step").to_tensor().item<float>(), 5);
}

TEST(InBackward, StepFinishesWhatIsLeft) {
  auto w = torch::ones({2}).requires_grad_();
  OptimizerInBackward opt(SGD({w}, {.lr = 0.5}));
  w.mutable_grad() = torch::ones({2});
  opt.step();
  EXPECT_TRUE(torch::equal(w, torch::full({2}, 0.5)));
  EXPECT_FALSE(w.grad().defined());
  opt.step();
  EXPECT_TRUE(torch::equal(w, torch::full({2}, 0.5)));
  auto more = torch::ones({2}).requires_grad_();
  opt.add_param_group({more});
  (w.sum() + more.sum()).backward();
  EXPECT_TRUE(torch::equal(more, torch::full({2}, 0.5)));
}

TEST(InBackward, HooksGoWithTheOptimizer) {
  auto w = torch::ones({2}).requires_grad_(), v = torch::ones({2}).requires_grad_();
  int calls = 0;
  spy(v, [&](const at::Tensor&) { ++calls; });
  {
    OptimizerInBackward opt(SGD({w, v}, {.lr = 0.5}));
    Optimizer copy = opt;
    opt = OptimizerInBackward(SGD({torch::ones({1}).requires_grad_()}));
    EXPECT_TRUE(has_hook(w));
  }
  EXPECT_FALSE(has_hook(w));
  (w.sum() + v.sum()).backward();
  EXPECT_TRUE(w.grad().defined());
  EXPECT_EQ(calls, 1);
}

TEST(InBackward, TrainsOnAfterABackwardThatThrew) {
  auto w = torch::ones({2}).requires_grad_(), v = torch::ones({2}).requires_grad_();
  OptimizerInBackward opt(SGD({w, v}, {.lr = 0.5}));
  auto middle = v * 2;
  middle.register_hook([](const at::Tensor&) { throw std::runtime_error("no more memory"); });
  // w is stepped before the hook throws: its gradient comes first.
  EXPECT_THAT([&] { (middle.sum() + (w * 1).sum()).backward(); },
              ::testing::ThrowsMessage<std::exception>(HasSubstr("no more memory")));
  const auto warning = levin::testing::captured_stderr([&] { opt.zero_grad(); });
  const auto before_w = w.detach().clone(), before_v = v.detach().clone();
  if (torch::equal(before_w, torch::ones({2})))
    EXPECT_EQ(warning, "");  // nothing was stepped
  else
    EXPECT_THAT(warning, HasSubstr("backward has stepped 1 of 2 parameters already"));
  (w.sum() + v.sum()).backward();
  opt.step();
  EXPECT_TRUE(torch::equal(w, before_w - 0.5));
  EXPECT_TRUE(torch::equal(v, before_v - 0.5));
}

TEST(InBackward, RefusesWhatNeedsAllGradients) {
  auto net = make_net();
  OptimizerInBackward opt(AdamW(net->parameters()));
  loss_of(net, 1).backward();
  EXPECT_THAT(error_of([&] { loss_of(net, 2).backward(); }), HasSubstr("call step() after every backward"));
  opt.step();
  loss_of(net, 3).backward();
  EXPECT_THAT(error_of([&] { (void)clip_grad_norm(opt.all_params(), 1); }),
              HasSubstr("[clip_grad_norm] parameter 0 is stepped in backward by AdamW, and its gradient is gone"));
  EXPECT_THAT(error_of([&] {
                (void)opt.impl()->step_scaled({torch::tensor(2.0f), torch::tensor(0.0f)});
              }),
              HasSubstr("[AdamW in backward] a loss scaler must see all gradients"));
  EXPECT_THAT(error_of([&] { OptimizerInBackward twice(SGD(net->parameters())); }),
              HasSubstr("is stepped in backward by AdamW already"));
  EXPECT_THAT(error_of([&] { OptimizerInBackward other(adapt(torch::optim::SGD(make_net()->parameters(), 0.1))); }),
              HasSubstr("SGD cannot step a part of its parameters"));
  EXPECT_THAT(error_of([&] { OptimizerInBackward none{Optimizer()}; }), HasSubstr("handle is empty"));
}

}  // namespace
}  // namespace levin::optim
