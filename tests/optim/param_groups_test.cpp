// Groups that come later: after them everything is as if they had been there, without gradients.
#include "fixtures.h"
#include "levin/optim/optim.h"

namespace levin::optim {
namespace {

using namespace testing;

struct Kind {
  std::string name;
  // One group, of `first`; a second one of `second` with lr 0.03 when it is not empty.
  std::function<Optimizer(std::vector<at::Tensor> first, std::vector<at::Tensor> second)> make;
};

template <class O, class G, class Options>
Kind levins(const char* name, Options options) {
  return {name, [options](auto first, auto second) -> Optimizer {
            if (second.empty()) return O(first, options);
            return O(std::vector<G>{G{.params = first}, G{.params = second, .lr = 0.03}}, options);
          }};
}

template <class O, class Options>
Kind torchs(const char* name, Options options) {
  return {name, [options](auto first, auto second) -> Optimizer {
            if (second.empty()) return adapt(O(first, options));
            auto other = std::make_unique<Options>(options);
            other->lr(0.03);
            std::vector<torch::optim::OptimizerParamGroup> groups;
            groups.emplace_back(first);
            groups.emplace_back(second, std::move(other));
            return adapt(O(groups, options));
          }};
}

std::vector<Kind> kinds() {
  namespace t = torch::optim;
  return {levins<SGD, SGDGroup>("SGD", SGDOptions{.lr = 0.1, .momentum = 0.9}),
          levins<AdamW, AdamGroup>("AdamW", AdamWOptions{.lr = 0.02, .weight_decay = 0.1}),
          levins<Adagrad, AdagradGroup>("Adagrad", AdagradOptions{.lr = 0.1, .initial_accumulator_value = 0.2}),
          levins<Lion, LionGroup>("Lion", LionOptions{.lr = 0.01}),
          levins<Lamb, LambGroup>("Lamb", LambOptions{.lr = 0.05, .weight_decay = 0.1}),
          torchs<t::SGD>("torch SGD", t::SGDOptions(0.1).momentum(0.9)),
          torchs<t::Adam>("torch Adam", t::AdamOptions(0.02)),
          torchs<t::Adagrad>("torch Adagrad", t::AdagradOptions(0.1).initial_accumulator_value(0.2))};
}

void steps(const Optimizer& optimizer, const Problem& problem, int from, int to, int second_from) {
  auto handle = optimizer;
  for (int step = from; step <= to; ++step) {
    problem.set_grads(step);
    if (step < second_from)
      for (auto& param : problem.groups[1]) param.mutable_grad().reset();
    handle.step();
  }
}

TEST(ParamGroups, AddedLaterEqualsThereFromTheStart) {
  for (const auto& kind : kinds()) {
    Problem a(at::kDouble), b(at::kDouble);
    const auto whole = kind.make(a.groups[0], a.groups[1]);
    steps(whole, a, 1, 8, /*second_from=*/4);
    const auto grown = kind.make(b.groups[0], {});
    steps(grown, b, 1, 3, /*second_from=*/4);
    grown.add_param_group(b.groups[1], {{"lr", 0.03}});
    EXPECT_EQ(grown.num_groups(), 2u);
    EXPECT_EQ(grown.lr(1), 0.03);
    steps(grown, b, 4, 8, /*second_from=*/4);
    for (size_t k = 0; k < a.all.size(); ++k)
      EXPECT_TRUE(torch::allclose(a.all[k], b.all[k], 1e-12, 1e-12)) << kind.name << " parameter " << k;
  }
}

TEST(ParamGroups, AreInTheState) {
  for (const auto& kind : kinds()) {
    Problem a(at::kDouble), b(at::kDouble);
    const auto first = kind.make(a.groups[0], {});
    first.add_param_group(a.groups[1], {{"lr", 0.03}});
    steps(first, a, 1, 4, 0);
    first.set_lr(0.5, 1);

    const auto second = kind.make(b.groups[0], {});
    const auto refusal = error_of([&] { second.load_state_dict(first.state_dict()); });
    EXPECT_THAT(refusal, ::testing::HasSubstr("group")) << kind.name;
    second.add_param_group(b.groups[1]);
    for (size_t k = 0; k < a.all.size(); ++k) b.all[k].detach().copy_(a.all[k].detach());
    second.load_state_dict(first.state_dict());
    EXPECT_EQ(second.lr(1), 0.5) << kind.name;
    steps(first, a, 5, 8, 0);
    steps(second, b, 5, 8, 0);
    for (size_t k = 0; k < a.all.size(); ++k) EXPECT_TRUE(torch::equal(a.all[k], b.all[k])) << kind.name << " " << k;
  }
}

TEST(ParamGroups, TakeWhatTheOptimizerWasMadeWith) {
  Problem problem;
  AdamW opt(problem.groups[0], {.lr = 0.02, .betas = {0.8, 0.95}, .weight_decay = 0.3});
  opt.set_lr(0.5);
  opt.add_param_group(problem.groups[1], {{"weight_decay", 0.1}});
  EXPECT_EQ(opt.lr(1), 0.02);
  EXPECT_EQ(opt.hyper("beta1", 1), 0.8);
  EXPECT_EQ(opt.hyper("weight_decay", 1), 0.1);
  EXPECT_EQ(opt.hyper("weight_decay", 0), 0.3);
}

TEST(ParamGroups, RefuseWhatDoesNotFitAndChangeNothing) {
  Problem problem;
  for (const Optimizer& opt : {Optimizer(SGD(problem.groups[0], {.lr = 0.1})),
                               adapt(torch::optim::SGD(problem.groups[0], torch::optim::SGDOptions(0.1)))}) {
    EXPECT_THAT(error_of([&] { opt.add_param_group({}); }), ::testing::HasSubstr("empty"));
    EXPECT_THAT(error_of([&] { opt.add_param_group({problem.groups[0][1]}); }), ::testing::HasSubstr("one group"));
    EXPECT_THAT(error_of([&] {
                  opt.add_param_group(problem.groups[1], {{"momentun", 0.5}});
                }),
                ::testing::HasSubstr("did you mean \"momentum\"?"));
    EXPECT_EQ(opt.num_groups(), 1u);
    EXPECT_EQ(opt.state_dict().at("param_groups").to_list().size(), 1u);
  }
  SGD opt(problem.groups[0], {.lr = 0.1});
  EXPECT_THAT(error_of([&] { opt.add_param_group(problem.groups[1], {{"lr", -1.0}}); }), ::testing::HasSubstr("lr=-1"));
  EXPECT_EQ(opt.num_groups(), 1u);
  EXPECT_EQ(opt.impl()->find_hyper(1, "lr"), nullptr);
}

TEST(ParamGroups, SchedulersKeepToTheirOwn) {
  Problem problem;
  SGD opt(problem.groups[0], {.lr = 0.1});
  ExponentialLR scheduler(opt, {.gamma = 0.5});
  opt.add_param_group(problem.groups[1], {{"lr", 0.03}});
  scheduler.step();
  EXPECT_EQ(opt.lr(0), 0.05);
  EXPECT_EQ(opt.lr(1), 0.03);
}

TEST(SWALR, RefusesInOneLine) {
  Problem problem;
  SGD opt(problem.all, {.lr = 0.1});
  EXPECT_THAT(error_of([&] { SWALR(opt, {}); }), ::testing::HasSubstr("swa_lr is missing"));
  EXPECT_THAT(error_of([&] { SWALR(opt, {.swa_lr = 0.1, .anneal_epochs = -1}); }), ::testing::HasSubstr("-1"));
  EXPECT_THAT(error_of([&] { SWALR(opt, {.swa_lr = 0.1, .anneal_strategy = "cosine"}); }),
              ::testing::HasSubstr("did you mean \"cos\"?"));
  EXPECT_THAT(error_of([&] { SWALR(opt, {.swa_lr = {0.1, 0.2}}); }), ::testing::HasSubstr("2 values"));
}

}  // namespace
}  // namespace levin::optim
