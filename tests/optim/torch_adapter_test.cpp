// torch's own optimizers behind Levin's handle.
#include "fixtures.h"
#include "levin/optim/optim.h"

namespace levin::optim {
namespace {

using namespace testing;

void run(Optimizer optimizer, const Problem& problem, int from, int to) {
  for (int step = from; step <= to; ++step) {
    problem.set_grads(step);
    optimizer.step();
  }
}

void expect_close(const Problem& a, const Problem& b, const std::string& what) {
  for (size_t k = 0; k < a.all.size(); ++k)
    EXPECT_TRUE(torch::allclose(a.all[k], b.all[k], 1e-10, 1e-10)) << what << " parameter " << k;
}

struct Pair {
  std::string name;
  std::function<Optimizer(const Problem&)> ours, theirs;
};

std::vector<Pair> pairs() {
  namespace t = torch::optim;
  return {
      {"SGD", [](auto& p) { return SGD(p.all, {.lr = 0.1, .momentum = 0.9, .nesterov = true}); },
       [](auto& p) { return adapt(t::SGD(p.all, t::SGDOptions(0.1).momentum(0.9).nesterov(true))); }},
      {"Adam", [](auto& p) { return Adam(p.all, {.lr = 0.02, .weight_decay = 0.1, .amsgrad = true}); },
       [](auto& p) { return adapt(t::Adam(p.all, t::AdamOptions(0.02).weight_decay(0.1).amsgrad(true))); }},
      {"AdamW",
       [](auto& p) {
         return AdamW(p.all, {.lr = 0.02, .betas = {0.8, 0.95}});
       },
       [](auto& p) {
         return adapt(t::AdamW(p.all, t::AdamWOptions(0.02).betas({0.8, 0.95})));
       }},
      {"Adagrad",
       [](auto& p) { return Adagrad(p.all, {.lr = 0.1, .lr_decay = 0.1, .initial_accumulator_value = 0.2}); },
       [](auto& p) {
         return adapt(t::Adagrad(p.all, t::AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.2)));
       }},
  };
}

TEST(Adapter, EqualsLevinsOwn) {
  for (const auto& pair : pairs()) {
    Problem a(at::kDouble), b(at::kDouble);
    auto theirs = pair.theirs(b);
    run(pair.ours(a), a, 1, 10);
    run(theirs, b, 1, 10);
    expect_close(a, b, pair.name);
    EXPECT_EQ(theirs.name(), pair.name);
  }
}

TEST(Adapter, EqualsLevinsOwnOnLargeTensors) {
  for (const auto& pair : pairs()) {
    Problem a(at::kDouble), b(at::kDouble);
    a.all = {filled({50, 211}, at::kDouble, 0, 0).requires_grad_(), filled({17}, at::kDouble, 1, 0).requires_grad_()};
    b.all = {a.all[0].detach().clone().requires_grad_(), a.all[1].detach().clone().requires_grad_()};
    run(pair.ours(a), a, 1, 6);
    run(pair.theirs(b), b, 1, 6);
    expect_close(a, b, pair.name);
  }
}

TEST(Adapter, StateGoesBothWays) {
  for (const auto& pair : pairs()) {
    Problem whole(at::kDouble);
    run(pair.ours(whole), whole, 1, 10);

    // Levin's state into torch's optimizer, and from there into Levin's again.
    Problem parts(at::kDouble);
    auto first = pair.ours(parts);
    run(first, parts, 1, 4);
    auto second = pair.theirs(parts);
    second.load_state_dict(first.state_dict());
    run(second, parts, 5, 7);
    auto third = pair.ours(parts);
    third.load_state_dict(second.state_dict());
    run(third, parts, 8, 10);
    expect_close(whole, parts, pair.name);
  }
}

TEST(Adapter, SavesRmsprop) {
  using torch::optim::RMSprop;
  const auto options = torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true);
  Problem whole, parts;
  run(adapt(RMSprop(whole.all, options)), whole, 1, 10);
  auto first = adapt(RMSprop(parts.all, options));
  run(first, parts, 1, 5);
  const auto state = first.state_dict();
  EXPECT_EQ(state.at("state").to_dict().at("0").to_dict().size(), 4u);
  EXPECT_EQ(state.at("param_groups").to_list()[0].to_dict().at("centered").to_bool(), true);
  auto second = adapt(RMSprop(parts.all, torch::optim::RMSpropOptions(0.7)));
  second.load_state_dict(state);
  EXPECT_EQ(second.lr(), 0.01);
  run(second, parts, 6, 10);
  for (size_t k = 0; k < whole.all.size(); ++k) EXPECT_TRUE(torch::equal(whole.all[k], parts.all[k]));
}

TEST(Adapter, NumbersStayInStepWhoeverChangesThem) {
  auto w = torch::ones({1}).requires_grad_();
  w.mutable_grad() = torch::ones({1});
  torch::optim::SGD sgd({w}, torch::optim::SGDOptions(0.5).momentum(0.9));
  auto opt = adapt(sgd);  // borrowed
  double* lr = opt.impl()->find_hyper(0, "lr");
  StepLR scheduler(opt, {.step_size = 1, .gamma = 0.5});
  scheduler.step();
  opt.step();
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(w.item<float>(), 0.75);
  sgd.param_groups()[0].options().set_lr(0.125);
  EXPECT_EQ(opt.lr(), 0.125);
  EXPECT_EQ(lr, opt.impl()->find_hyper(0, "lr"));
  OneCycleLR cycle(opt, {.max_lr = 1.0, .total_steps = 10});
  opt.step();
  EXPECT_EQ(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).momentum(), 0.95);
  EXPECT_EQ(adapt(torch::optim::Adam({w}, 0.1)).hyper("beta2"), 0.999);
}

TEST(Adapter, LbfgsNeedsAClosureAndSavesItsState) {
  auto w = torch::full({1}, 4.0).requires_grad_();
  auto opt = adapt(std::make_shared<torch::optim::LBFGS>(std::vector<at::Tensor>{w}, 1.0));
  EXPECT_THAT(error_of([&] { opt.step(); }), ::testing::StartsWith("[LBFGS.step] needs the loss more than once"));
  opt.step([&] {
    opt.zero_grad();
    auto loss = (w * w).sum();
    loss.backward();
    return loss;
  });
  EXPECT_NEAR(w.item<float>(), 0, 1e-3);
  const auto state = opt.state_dict().at("state").to_dict().at("0").to_dict();
  EXPECT_GT(state.at("n_iter").to_int(), 0);
  EXPECT_EQ(state.at("d").to_tensor().sizes(), at::IntArrayRef({1}));
  EXPECT_EQ(opt.state_dict().at("param_groups").to_list()[0].to_dict().at("lr").to_double(), 1.0);
}

TEST(Adapter, ErrorsAreClear) {
  auto a = torch::ones({2}).requires_grad_(), b = torch::ones({3}).requires_grad_();
  auto one = adapt(torch::optim::Adam({a}, 0.1)), two = adapt(torch::optim::Adam({a, b}, 0.1)),
       other = adapt(torch::optim::Adam({b}, 0.1));
  a.mutable_grad() = torch::ones({2});
  one.step();
  EXPECT_EQ(error_of([&] { two.load_state_dict(one.state_dict()); }),
            "[Adam.load_state_dict] the saved groups do not fit: group 0 has 1 parameters saved and 2 here");
  EXPECT_EQ(
      error_of([&] { other.load_state_dict(one.state_dict()); }),
      "[Adam.load_state_dict] parameter 0 of group 0: \"exp_avg\" has shape [2] in the saved state, [3] is needed");
  EXPECT_THAT(error_of([] { adapt(std::shared_ptr<torch::optim::Optimizer>()); }), ::testing::HasSubstr("null"));
}

}  // namespace
}  // namespace levin::optim
