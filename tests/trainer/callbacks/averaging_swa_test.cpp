// StochasticWeightAveraging beside Lightning's, and resumed.
#include "levin/trainer/callbacks/stochastic_weight_averaging.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

struct Rates : Callback {
  void on_train_epoch_start(TrainerContext& run) override { at_epoch.push_back(run.optimizers()[0].lr()); }
  void on_train_batch_start(TrainerContext& run, const AnyBatch&, int64_t) override {
    at_batch.push_back(run.optimizers()[0].lr());
  }
  std::vector<double> at_epoch, at_batch;
};

StochasticWeightAveragingOptions options_of(const Json& spec) {
  StochasticWeightAveragingOptions options;
  options.swa_lrs = spec.at("swa_lrs").get<double>();
  const auto& start = spec.at("swa_epoch_start");
  if (start.is_number_integer())
    options.swa_epoch_start = start.get<int64_t>();
  else
    options.swa_epoch_start = start.get<double>();
  options.annealing_epochs = spec.value("annealing_epochs", int64_t{10});
  options.annealing_strategy = spec.value("annealing_strategy", "cos");
  return options;
}

TEST(Swa, EqualsLightning) {
  for (const auto& expected : cases_of("swa.json")) {
    const std::string name = expected.at("name");
    Net net(expected.at("model") == "NormNet", expected.at("schedule"));
    auto rates = std::make_shared<Rates>();
    const auto average = std::make_shared<StochasticWeightAveraging>(options_of(expected.at("options")));
    Trainer trainer(quiet({average, rates}, expected.at("max_epochs")));
    trainer.fit(net, loader(32, 4));

    const auto rates_of = [](const Json& json) { return json.get<std::vector<double>>(); };
    const auto epochs = rates_of(expected.at("lr_at_epoch_start"));
    EXPECT_THAT(rates->at_epoch, ::testing::Pointwise(::testing::DoubleNear(1e-12), epochs)) << name;
    EXPECT_THAT(rates->at_batch,
                ::testing::Pointwise(::testing::DoubleNear(1e-12), rates_of(expected.at("lr_at_batch_start"))))
        << name;
    EXPECT_EQ(net.losses.size(), expected.at("batches")) << name;
    EXPECT_EQ(trainer.current_epoch(), expected.at("current_epoch")) << name;
    // Lightning counts a step in the epoch that only refreshes the statistics.
    EXPECT_EQ(trainer.global_step(), 48) << name;
    if (!net.normed) {
      expect_weights(net, expected.at("final"), name);
      continue;
    }
    // Lightning makes that step with a gradient of the epoch before; its average before that is in a file of its own.
    auto final_weights = expected.at("final");
    const auto kept = Json::parse(read_file(fixture_path("tuning_swa.json")));
    for (const auto& [key, value] : kept.at("average").items()) final_weights[key] = value;
    expect_weights(net, final_weights, name);
  }
}

struct Case {
  std::string name;
  bool norm;
  int64_t save_after;
};

// Checkpoints before the average begins, inside it, and inside the epoch that refreshes the statistics.
TEST(Swa, ResumesExactly) {
  const Json step{{"type", "StepLR"}, {"options", {{"step_size", 1}, {"gamma", 0.9}}}};
  for (const auto& [name, norm, save_after] :
       {Case{"before", false, 3}, Case{"inside", false, 27}, Case{"end of an epoch", false, 32}, Case{"norm", true, 30},
        Case{"refreshing", true, 51}}) {
    TemporaryFolder folder;
    const auto callback = [] {
      return StochasticWeightAveraging({.swa_lrs = 0.05, .swa_epoch_start = 3, .annealing_epochs = 2});
    };
    Net whole(norm, step), resumed(norm, step);
    whole.momentum = resumed.momentum = 0.5;
    Trainer first(quiet({callback(), SaveAt(folder.path() / "kept", save_after)}, 6, folder.path()));
    first.fit(whole, loader(32, 4));

    Trainer second(quiet({callback()}, 6, folder.path()));
    second.fit(resumed, loader(32, 4), {}, {.ckpt_path = (folder.path() / "kept").string()});
    EXPECT_EQ(second.global_step(), first.global_step()) << name;
    EXPECT_EQ(resumed.losses.size(), whole.losses.size() - static_cast<size_t>(save_after)) << name;
    expect_equal(whole, resumed, name);
  }
}

TEST(Swa, PutsBatchNormAndEpochsBack) {
  Net net(true);
  Trainer trainer(quiet({StochasticWeightAveraging({.swa_lrs = 0.05, .swa_epoch_start = 1})}, 2));
  trainer.fit(net, loader(32, 4));
  const auto* norm = net.normed->ptr(1)->as<torch::nn::BatchNorm1d>();
  EXPECT_EQ(norm->options.momentum(), 0.1);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 8);
  EXPECT_EQ(trainer.plan().max_epochs, 2);
  trainer.fit(net, loader(32, 4));
  EXPECT_EQ(trainer.current_epoch(), 3);
}

TEST(Swa, TakesAnAveragingFunction) {
  Net net;
  StochasticWeightAveragingOptions options{.swa_lrs = 0.05, .swa_epoch_start = 1};
  int calls = 0;
  options.avg_fn = [&](const Tensor&, const Tensor& weight, int64_t count) {
    EXPECT_GE(count, 1);
    ++calls;
    return weight * 0 + 7;
  };
  Trainer trainer(quiet({StochasticWeightAveraging(options)}, 3));
  trainer.fit(net, loader(8, 4));
  EXPECT_EQ(calls, 2 * 2);
  EXPECT_TRUE(at::equal(net.plain->bias, at::full({2}, 7.0)));
}

TEST(Swa, RefusesInOneLine) {
  const auto make = [](StochasticWeightAveragingOptions options) {
    return error_of([&] { StochasticWeightAveraging{options}; });
  };
  EXPECT_THAT(make({}), HasSubstr("swa_lrs is missing"));
  EXPECT_THAT(make({.swa_lrs = -1}), HasSubstr("swa_lrs=-1"));
  EXPECT_THAT(make({.swa_lrs = 0.1, .swa_epoch_start = 0}), HasSubstr("swa_epoch_start=0"));
  EXPECT_THAT(make({.swa_lrs = 0.1, .swa_epoch_start = 1.5}), HasSubstr("swa_epoch_start=1.5"));
  EXPECT_THAT(make({.swa_lrs = 0.1, .annealing_strategy = "cosine"}), HasSubstr("did you mean \"cos\"?"));
  Net net;
  auto endless = quiet({StochasticWeightAveraging({.swa_lrs = 0.1})}, -1);
  endless.max_steps = 3;
  EXPECT_THAT(error_of([&] { Trainer(endless).fit(net, loader(8, 4)); }), HasSubstr("without end"));
}

}  // namespace
}  // namespace levin::tuning_test
