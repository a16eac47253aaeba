// LearningRateFinder beside Lightning's, BatchSizeFinder against a memory of known size.
#include <c10/util/Exception.h>

#include "levin/trainer/callbacks/tuning/batch_size_finder.h"
#include "levin/trainer/callbacks/tuning/lr_finder.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

LearningRateFinderOptions options_of(const Json& spec) {
  LearningRateFinderOptions options;
  options.min_lr = spec.at("min_lr");
  options.max_lr = spec.at("max_lr");
  options.num_training_steps = spec.at("num_training_steps");
  options.mode = spec.value("mode", "exponential");
  if (spec.contains("early_stop_threshold") && spec["early_stop_threshold"].is_null())
    options.early_stop_threshold.reset();
  return options;
}

TEST(LearningRateFinder, EqualsLightning) {
  int cases = 0;
  for (const auto& expected : cases_of("lr_finder.json")) {
    const std::string name = expected.at("name");
    if (name == "cut by max_epochs") continue;  // a search here goes round the data as often as it must
    ++cases;
    TemporaryFolder folder;
    const auto finder = std::make_shared<LearningRateFinder>(options_of(expected.at("options")));
    Net net;
    net.hparams = {{"lr", 0.1}};
    Trainer trainer(quiet({finder}, expected.at("max_epochs"), folder.path()));
    trainer.fit(net, loader(64, 4));
    const auto& found = finder->results();
    const auto lrs = expected.at("lrs").get<std::vector<double>>(),
               losses = expected.at("losses").get<std::vector<double>>();
    ASSERT_EQ(found.lrs.size(), lrs.size()) << name;
    for (size_t i = 0; i < lrs.size(); ++i) {
      EXPECT_NEAR(found.lrs[i], lrs[i], 1e-9 * lrs[i]) << name << " " << i;
      EXPECT_NEAR(found.losses[i], losses[i], 2e-5 * std::max(1.0, losses[i])) << name << " " << i;
    }
    EXPECT_EQ(found.stopped_early, name == "stops early") << name;
    if (expected.at("suggestion").is_null()) {
      EXPECT_FALSE(found.suggestion()) << name;
    } else {
      EXPECT_NEAR(found.suggestion().value(), expected.at("suggestion").get<double>(), 1e-12) << name;
      EXPECT_TRUE(std::filesystem::exists(finder->plot_path())) << name;
    }
    EXPECT_NEAR(net.hparams.at("lr").to_double(), expected.at("lr_after").get<double>(), 1e-12) << name;
    const auto& after = expected.at("fit_after");
    EXPECT_EQ(trainer.global_step(), after.at("global_step")) << name;
    expect_weights(net, after.at("final"), name);
  }
  EXPECT_EQ(cases, 5);
}

TEST(LearningRateFinder, PutsEverythingBack) {
  TemporaryFolder folder;
  const auto finder =
      std::make_shared<LearningRateFinder>(LearningRateFinderOptions{.num_training_steps = 20, .update_attr = false});
  const Json step{{"type", "StepLR"}, {"options", {{"step_size", 1}, {"gamma", 0.5}}}};
  Net searched(true, step), plain(true, step);
  searched.momentum = plain.momentum = 0.9;
  Trainer(quiet({finder}, 2, folder.path())).fit(searched, loader(32, 4));
  Trainer(quiet({}, 2, folder.path())).fit(plain, loader(32, 4));
  EXPECT_EQ(finder->results().lrs.size(), 20u);
  expect_equal(plain, searched, "after a search");
}

struct Rate : Callback {
  void on_train_batch_start(TrainerContext& run, const AnyBatch&, int64_t) override {
    rates.push_back(run.optimizers()[0].lr());
  }
  std::vector<double> rates;
};

TEST(LearningRateFinder, GivesTheRateToSchedulersToo) {
  struct Warmup : Net {
    Optimizers configure_optimizers() override {
      optim::SGD sgd(parameters(), {.lr = 0.1});
      return {sgd, {.scheduler = optim::LinearLR(sgd, {.start_factor = 0.5, .total_iters = 2}), .interval = "step"}};
    }
  };
  TemporaryFolder folder;
  const auto finder = std::make_shared<LearningRateFinder>(LearningRateFinderOptions{.num_training_steps = 30});
  const auto rate = std::make_shared<Rate>();
  Warmup net;
  Trainer(quiet({finder, rate}, 1, folder.path())).fit(net, loader(32, 4));
  const double lr = finder->results().suggestion().value();
  EXPECT_THAT(rate->rates, ::testing::Pointwise(::testing::DoubleNear(1e-12),
                                                std::vector<double>{lr / 2, lr * 0.75, lr, lr, lr, lr, lr, lr}));
}

TEST(LearningRateFinder, WritesThePicture) {
  TemporaryFolder folder;
  const auto rows = std::make_shared<Rows>(folder.path() / "logs");
  const auto finder = std::make_shared<LearningRateFinder>(LearningRateFinderOptions{.num_training_steps = 40});
  auto options = quiet({finder}, 1, folder.path());
  options.logger = rows;
  Net net;
  Trainer(options).fit(net, loader(32, 4));
  EXPECT_EQ(finder->plot_path(), folder.path() / "logs" / "lr_find.svg");
  const auto svg = read_file(finder->plot_path());
  EXPECT_THAT(svg, HasSubstr("learning rate"));
  EXPECT_THAT(svg, HasSubstr(">lr "));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "logs" / "lr_find.png"));
  EXPECT_TRUE(rows->rows.empty());  // the search is no part of the run
}

TEST(LearningRateFinder, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { LearningRateFinder({.mode = "exponental"}); }), HasSubstr("did you mean \"exponential\"?"));
  EXPECT_THAT(error_of([] { LearningRateFinder({.min_lr = 0}); }), HasSubstr("min_lr=0"));
  EXPECT_THAT(error_of([] { LearningRateFinder({.min_lr = 1, .max_lr = 0.5}); }), HasSubstr("max_lr=0.5"));
  EXPECT_THAT(error_of([] { LearningRateFinder({.num_training_steps = 1}); }), HasSubstr("num_training_steps=1"));
}

/// Runs out of memory above a size.
struct Hungry : Net {
  explicit Hungry(int64_t samples) : fits(samples) {}
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    sizes.push_back(batch["x"].size(0));
    TORCH_CHECK_WITH(OutOfMemoryError, batch["x"].size(0) <= fits, "CUDA out of memory. Tried to allocate 20.00 GiB");
    return Net::training_step(batch, at);
  }
  int64_t fits;
  std::vector<int64_t> sizes;
};

std::pair<std::vector<std::pair<int64_t, bool>>, int64_t> search(BatchSizeFinderOptions options, Hungry& net,
                                                                 int64_t samples = 64) {
  const auto finder = std::make_shared<BatchSizeFinder>(options);
  TemporaryFolder folder;
  Trainer(quiet({finder}, 1, folder.path())).fit(net, loader(samples, 3));
  std::vector<std::pair<int64_t, bool>> attempts;
  for (const auto& attempt : finder->attempts()) attempts.emplace_back(attempt.batch_size, attempt.fits);
  return {attempts, finder->optimal_batch_size().value()};
}

using Attempts = std::vector<std::pair<int64_t, bool>>;

TEST(BatchSizeFinder, DoublesUntilMemoryRunsOut) {
  Hungry net(11);
  const auto [attempts, found] = search({}, net);
  EXPECT_EQ(attempts, (Attempts{{2, true}, {4, true}, {8, true}, {16, false}}));
  EXPECT_EQ(found, 8);
  // Then the run itself: 64 samples in batches of 8.
  EXPECT_EQ(std::vector<int64_t>(net.sizes.end() - 8, net.sizes.end()), std::vector<int64_t>(8, 8));
}

TEST(BatchSizeFinder, SearchesBetweenTheTwoWithBinsearch) {
  Hungry net(11);
  const auto [attempts, found] = search({.mode = "binsearch", .margin = 0}, net);
  EXPECT_EQ(attempts, (Attempts{{2, true}, {4, true}, {8, true}, {16, false}, {12, false}, {10, true}, {11, true}}));
  EXPECT_EQ(found, 11);
  Hungry other(40);
  EXPECT_EQ(search({.mode = "binsearch", .margin = 0.05}, other).second, 38);
}

TEST(BatchSizeFinder, GoesDownWhenTheFirstIsTooLarge) {
  Hungry net(3);
  const auto [attempts, found] = search({.init_val = 16}, net);
  EXPECT_EQ(attempts, (Attempts{{16, false}, {8, false}, {4, false}, {2, true}}));
  EXPECT_EQ(found, 2);
  Hungry none(0);
  EXPECT_THAT(error_of([&] { search({.init_val = 2}, none); }), HasSubstr("even a batch of 1"));
}

TEST(BatchSizeFinder, StopsAtItsLimits) {
  Hungry net(1000);
  EXPECT_EQ(search({.max_val = 20}, net).first, (Attempts{{2, true}, {4, true}, {8, true}, {16, true}, {20, true}}));
  EXPECT_EQ(search({.max_trials = 2}, net).second, 4);
  // All 10 samples are in one batch of 16: more cannot be tried.
  EXPECT_EQ(search({}, net, 10).first, (Attempts{{2, true}, {4, true}, {8, true}, {16, true}}));
}

TEST(BatchSizeFinder, PutsEverythingElseBack) {
  Hungry searched(9);
  searched.momentum = 0.9;
  search({}, searched, 32);
  Net plain;
  plain.momentum = 0.9;
  Trainer(quiet({}, 1)).fit(plain, loader(32, 8));
  expect_equal(plain, searched, "after a search");
}

TEST(BatchSizeFinder, LetsOtherErrorsThrough) {
  struct Broken : Net {
    StepOutput training_step(const Batch&, const StepInfo&) override { throw Error("[test] broken"); }
  };
  Broken net;
  EXPECT_THAT(error_of([&] { Trainer(quiet({BatchSizeFinder()}, 1)).fit(net, loader(8, 4)); }), HasSubstr("broken"));
  EXPECT_THAT(error_of([] { BatchSizeFinder({.mode = "powr"}); }), HasSubstr("did you mean \"power\"?"));
  EXPECT_THAT(error_of([] { BatchSizeFinder({.margin = 1}); }), HasSubstr("margin=1"));
  EXPECT_TRUE(detail::is_out_of_memory(std::bad_alloc()));
  EXPECT_TRUE(detail::is_out_of_memory(std::runtime_error("DefaultCPUAllocator: can't allocate memory: you tried")));
  EXPECT_FALSE(detail::is_out_of_memory(Error("[test] broken")));
}

}  // namespace
}  // namespace levin::tuning_test
