// The learning rates and momenta of torch.optim.lr_scheduler, step by step, and resuming at any step.
#include "levin/optim/schedulers.h"

#include "fixtures.h"
#include "levin/optim/adam.h"
#include "levin/optim/sgd.h"

namespace levin::optim {
namespace {

using namespace testing;

std::vector<at::Tensor> one_param() {
  return {torch::zeros({1}).requires_grad_()};
}

Optimizer two_group_sgd() {
  return SGD({{.params = one_param()}, {.params = one_param(), .lr = 0.03}}, {.lr = 0.1, .momentum = 0.9});
}
Optimizer two_group_adam() {
  return AdamW({{.params = one_param()}, {.params = one_param(), .lr = 0.03}}, {.lr = 0.1});
}

using Make = std::function<Scheduler(const Optimizer&)>;

const std::map<std::string, Make>& schedulers() {
  static const std::map<std::string, Make> all{
      {"StepLR", [](auto& o) { return StepLR(o, {.step_size = 7, .gamma = 0.5}); }},
      {"MultiStepLR",
       [](auto& o) {
         return MultiStepLR(o, {.milestones = {3, 10, 10, 40}, .gamma = 0.3});
       }},
      {"ConstantLR", [](auto& o) { return ConstantLR(o, {.factor = 0.25, .total_iters = 9}); }},
      {"LinearLR", [](auto& o) { return LinearLR(o, {.start_factor = 0.1, .total_iters = 13}); }},
      {"LinearLR_down",
       [](auto& o) { return LinearLR(o, {.start_factor = 1.0, .end_factor = 0.2, .total_iters = 20}); }},
      {"ExponentialLR", [](auto& o) { return ExponentialLR(o, {.gamma = 0.93}); }},
      {"PolynomialLR", [](auto& o) { return PolynomialLR(o, {.total_iters = 30, .power = 1.7}); }},
      {"CosineAnnealingLR", [](auto& o) { return CosineAnnealingLR(o, {.t_max = 20, .eta_min = 0.003}); }},
      {"CosineAnnealingLR_whole", [](auto& o) { return CosineAnnealingLR(o, {.t_max = 64}); }},
      {"WarmRestarts",
       [](auto& o) { return CosineAnnealingWarmRestarts(o, {.t_0 = 5, .t_mult = 2, .eta_min = 0.001}); }},
      {"WarmRestarts_even", [](auto& o) { return CosineAnnealingWarmRestarts(o, {.t_0 = 9}); }},
      {"OneCycleLR",
       [](auto& o) {
         return OneCycleLR(o, {.max_lr = {1.0, 0.5}, .total_steps = 64});
       }},
      {"OneCycleLR_three",
       [](auto& o) {
         return OneCycleLR(o, {.max_lr = 0.7,
                               .epochs = 8,
                               .steps_per_epoch = 8,
                               .pct_start = 0.4,
                               .anneal_strategy = "linear",
                               .base_momentum = 0.8,
                               .max_momentum = {0.9, 0.99},
                               .div_factor = 10,
                               .final_div_factor = 100,
                               .three_phase = true});
       }},
      {"OneCycleLR_adam", [](auto& o) { return OneCycleLR(o, {.max_lr = 0.7, .total_steps = 64, .pct_start = 0.25}); }},
      {"OneCycleLR_still",
       [](auto& o) { return OneCycleLR(o, {.max_lr = 0.7, .total_steps = 64, .cycle_momentum = false}); }},
      {"LambdaLR",
       [](auto& o) {
         return LambdaLR(o, {[](int64_t e) { return std::pow(0.95, e); },
                             [](int64_t e) { return 1.0 / (1.0 + static_cast<double>(e)); }});
       }},
      {"SWALR",
       [](auto& o) {
         return SWALR(o, {.swa_lr = {0.05, 0.2}, .anneal_epochs = 12});
       }},
      {"SWALR_linear",
       [](auto& o) { return SWALR(o, {.swa_lr = 0.5, .anneal_epochs = 7, .anneal_strategy = "linear"}); }},
      {"SWALR_at_once", [](auto& o) { return SWALR(o, {.swa_lr = 0.5, .anneal_epochs = 0}); }},
      {"SequentialLR",
       [](auto& o) {
         return SequentialLR(o,
                             {LinearLR(o, {.start_factor = 0.1, .total_iters = 5}), CosineAnnealingLR(o, {.t_max = 30}),
                              ExponentialLR(o, {.gamma = 0.9})},
                             {.milestones = {5, 35}});
       }},
      {"SequentialLR_restarts",
       [](auto& o) {
         return SequentialLR(
             o,
             {ConstantLR(o, {.factor = 0.5, .total_iters = 3}), CosineAnnealingWarmRestarts(o, {.t_0 = 6, .t_mult = 2}),
              StepLR(o, {.step_size = 4, .gamma = 0.5})},
             {.milestones = {4, 30}});
       }},
      {"SequentialLR_poly",
       [](auto& o) {
         return SequentialLR(
             o,
             {MultiStepLR(o, {.milestones = {2, 5}, .gamma = 0.5}), PolynomialLR(o, {.total_iters = 20, .power = 2}),
              LambdaLR(o, [](int64_t e) { return 1.0 / (static_cast<double>(e) + 2); })},
             {.milestones = {8, 30}});
       }},
      {"SequentialLR_chained",
       [](auto& o) {
         return SequentialLR(
             o,
             {ChainedScheduler({ConstantLR(o, {.factor = 0.1, .total_iters = 3}), ExponentialLR(o, {.gamma = 0.9})}),
              StepLR(o, {.step_size = 9, .gamma = 0.5})},
             {.milestones = {12}});
       }},
      {"ChainedScheduler",
       [](auto& o) {
         return ChainedScheduler({ConstantLR(o, {.factor = 0.1, .total_iters = 4}), ExponentialLR(o, {.gamma = 0.9})});
       }},
      {"ChainedScheduler_three",
       [](auto& o) {
         return ChainedScheduler({LinearLR(o, {.start_factor = 0.2, .total_iters = 8}),
                                  CosineAnnealingLR(o, {.t_max = 40, .eta_min = 0.001}),
                                  MultiStepLR(o, {.milestones = {20}, .gamma = 0.5})});
       }},
  };
  return all;
}

Optimizer optimizer_for(const std::string& name) {
  return name == "OneCycleLR_adam" ? two_group_adam() : two_group_sgd();
}

void expect_reading(const Optimizer& optimizer, const Json& expected, size_t step, const std::string& name) {
  const char* momentum = optimizer.name() == "SGD" ? "momentum" : "beta1";
  for (size_t group = 0; group < 2; ++group) {
    EXPECT_NEAR(optimizer.lr(group), expected.at("lr")[step][group].get<double>(), 1e-12)
        << name << " step " << step << " group " << group;
    EXPECT_NEAR(optimizer.hyper(momentum, group), expected.at("momentum")[step][group].get<double>(), 1e-12)
        << name << " step " << step;
  }
}

TEST(Schedulers, EqualTorch) {
  const auto expected = fixture("schedulers");
  ASSERT_EQ(expected.size(), schedulers().size());
  for (const auto& [name, make] : schedulers()) {
    auto optimizer = optimizer_for(name);
    auto scheduler = make(optimizer);
    for (size_t step = 0;; ++step) {
      expect_reading(optimizer, expected.at(name), step, name);
      EXPECT_EQ(scheduler.last_lr()[1], optimizer.lr(1)) << name;
      if (step == 63) break;
      scheduler.step();
    }
  }
}

TEST(Schedulers, ResumeAtAnyStep) {
  const auto expected = fixture("schedulers");
  for (const auto& [name, make] : schedulers())
    for (size_t stop = 0; stop < 63; stop += 7) {
      StateDict optimizer_state, scheduler_state;
      {
        auto optimizer = optimizer_for(name);
        auto scheduler = make(optimizer);
        for (size_t step = 0; step < stop; ++step) scheduler.step();
        optimizer_state = optimizer.state_dict();
        scheduler_state = scheduler.state_dict();
      }
      auto optimizer = optimizer_for(name);
      auto scheduler = make(optimizer);
      optimizer.load_state_dict(optimizer_state);
      scheduler.load_state_dict(scheduler_state);
      EXPECT_EQ(scheduler.last_lr()[0], optimizer.lr(0)) << name << " " << stop;
      for (size_t step = stop; step < 63; ++step) {
        scheduler.step();
        expect_reading(optimizer, expected.at(name), step + 1, name + " resumed at " + std::to_string(stop));
      }
    }
}

ReduceLROnPlateauOptions plateau_options(const Json& in) {
  ReduceLROnPlateauOptions o;
  o.mode = in.value("mode", o.mode);
  o.factor = in.value("factor", o.factor);
  o.patience = in.value("patience", o.patience);
  o.threshold = in.value("threshold", o.threshold);
  o.threshold_mode = in.value("threshold_mode", o.threshold_mode);
  o.cooldown = in.value("cooldown", o.cooldown);
  o.eps = in.value("eps", o.eps);
  if (in.contains("min_lr"))
    o.min_lr = in["min_lr"].is_array() ? PerGroup(in["min_lr"].get<std::vector<double>>())
                                       : PerGroup(in["min_lr"].get<double>());
  return o;
}

double metric(uint32_t epoch) {
  return number(3, epoch, 0) * 0.3 + 1 / (1 + epoch * 0.25);
}

TEST(Schedulers, PlateauEqualsTorchAndResumes) {
  const auto cases = fixture("plateaus");
  for (const auto& [name, test] : cases.items()) {
    auto optimizer = two_group_sgd();
    Scheduler scheduler = ReduceLROnPlateau(optimizer, plateau_options(test.at("options")));
    double least = 1;
    for (uint32_t epoch = 0; epoch < 70; ++epoch) {
      if (epoch == 31) {
        auto fresh = two_group_sgd();
        Scheduler resumed = ReduceLROnPlateau(fresh, plateau_options(test.at("options")));
        fresh.load_state_dict(optimizer.state_dict());
        resumed.load_state_dict(scheduler.state_dict());
        optimizer = fresh;
        scheduler = resumed;
      }
      scheduler.step(metric(epoch));
      for (size_t group = 0; group < 2; ++group)
        ASSERT_NEAR(optimizer.lr(group), test.at("lr")[epoch][group].get<double>(), 1e-12)
            << name << " epoch " << epoch;
      least = std::min(least, optimizer.lr(0));
    }
    EXPECT_LT(least, 0.1) << name;
  }
}

TEST(Schedulers, ReadyWarmupCosine) {
  auto optimizer = two_group_sgd();
  auto scheduler =
      linear_warmup_cosine(optimizer, {.total_steps = 100, .warmup_steps = 10, .start_factor = 0.1, .eta_min = 0.001});
  EXPECT_NEAR(optimizer.lr(), 0.01, 1e-12);
  for (int step = 0; step < 10; ++step) scheduler.step();
  EXPECT_NEAR(optimizer.lr(), 0.1, 1e-12);
  for (int step = 0; step < 45; ++step) scheduler.step();
  EXPECT_NEAR(optimizer.lr(), 0.001 + (0.1 - 0.001) / 2, 1e-12);
  for (int step = 0; step < 45; ++step) scheduler.step();
  EXPECT_NEAR(optimizer.lr(), 0.001, 1e-12);
}

TEST(Schedulers, NestedSequencesStartAgain) {
  auto optimizer = two_group_sgd();
  // Torch refuses a composition that is not the first; here it starts as if it were constructed at that step.
  SequentialLR inner(optimizer,
                     {ConstantLR(optimizer, {.factor = 0.5, .total_iters = 2}), StepLR(optimizer, {.step_size = 2})},
                     {.milestones = {3}});
  SequentialLR outer(optimizer, {ConstantLR(optimizer, {.factor = 0.25, .total_iters = 100}), inner},
                     {.milestones = {2}});
  std::vector<double> seen{optimizer.lr()};
  for (int step = 0; step < 8; ++step) {
    outer.step();
    seen.push_back(optimizer.lr());
  }
  EXPECT_THAT(
      seen, ::testing::Pointwise(::testing::DoubleNear(1e-15), {0.025, 0.025, 0.05, 0.05, 0.1, 0.1, 0.1, 0.01, 0.01}));
}

TEST(Schedulers, KeepTheirOptimizerAndShareCopies) {
  Scheduler empty;
  EXPECT_FALSE(empty);
  EXPECT_THAT(error_of([&] { empty.step(); }), ::testing::HasSubstr("[scheduler] this handle is empty"));
  Scheduler scheduler = [] {
    auto optimizer = two_group_sgd();
    return StepLR(optimizer, {.step_size = 1, .gamma = 0.5});
  }();
  Scheduler copy = scheduler;
  scheduler.step();
  copy.step();
  EXPECT_DOUBLE_EQ(scheduler.last_lr()[0], 0.025);
  EXPECT_EQ(copy.name(), "StepLR");
  EXPECT_FALSE(copy.needs_metric());
}

TEST(Schedulers, ErrorsNameOptionAndValue) {
  auto o = two_group_sgd();
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of([&] { StepLR(o, {}); }), HasSubstr("[StepLR] step_size=0 must be at least 1"));
  EXPECT_THAT(error_of([&] { CosineAnnealingLR(o, {}); }), HasSubstr("t_max=0"));
  EXPECT_THAT(error_of([&] { ExponentialLR(o, {}); }), HasSubstr("gamma"));
  EXPECT_THAT(error_of([&] { LinearLR(o, {.start_factor = 0}); }), HasSubstr("start_factor=0 must be in (0, 1]"));
  EXPECT_THAT(error_of([&] { OneCycleLR(o, {.total_steps = 10}); }), HasSubstr("max_lr must be given"));
  EXPECT_THAT(error_of([&] { OneCycleLR(o, {.max_lr = 1.0}); }),
              HasSubstr("give total_steps, or epochs and steps_per_epoch"));
  EXPECT_THAT(error_of([&] {
                OneCycleLR(o, {.max_lr = {1, 2, 3}, .total_steps = 9});
              }),
              HasSubstr("max_lr has 3 values, the optimizer has 2"));
  EXPECT_THAT(error_of([&] { OneCycleLR(o, {.max_lr = 1, .total_steps = 9, .anneal_strategy = "cosine"}); }),
              HasSubstr("anneal_strategy \"cosine\" is not known; did you mean \"cos\"?"));
  EXPECT_THAT(error_of([&] { ReduceLROnPlateau(o, {.mode = "mim"}); }), HasSubstr("did you mean \"min\"?"));
  EXPECT_THAT(error_of([&] { ReduceLROnPlateau(o).step(); }), HasSubstr("call step(metric)"));
  EXPECT_THAT(error_of([&] { StepLR(o, {.step_size = 1}).step(0.5); }),
              HasSubstr("only ReduceLROnPlateau follows one"));
  EXPECT_THAT(error_of([&] { LambdaLR(o, std::vector<LambdaLR::Factor>{[](int64_t) { return 1.0; }}); }),
              HasSubstr("1 functions are given"));
  EXPECT_THAT(error_of([&] { SequentialLR(o, {StepLR(o, {.step_size = 1})}, {.milestones = {3}}); }),
              HasSubstr("1 schedulers need 0 milestones"));
  EXPECT_THAT(error_of([&] { ChainedScheduler({ReduceLROnPlateau(o)}); }),
              HasSubstr("ReduceLROnPlateau, which needs a metric"));
  EXPECT_THAT(error_of([&] { ChainedScheduler({}); }), HasSubstr("empty"));
  auto other = two_group_sgd();
  EXPECT_THAT(error_of([&] {
                ChainedScheduler({StepLR(o, {.step_size = 1}), StepLR(other, {.step_size = 1})});
              }),
              HasSubstr("belongs to another optimizer"));
  EXPECT_THAT(error_of([&] { StepLR(Optimizer(), {.step_size = 1}); }), HasSubstr("optimizer handle is empty"));
  EXPECT_THAT(error_of([&] {
                OneCycleLR cycle(o, {.max_lr = 1, .total_steps = 2});
                for (int i = 0; i < 3; ++i) cycle.step();
              }),
              HasSubstr("step 3 is beyond total_steps=2"));
}

}  // namespace
}  // namespace levin::optim
