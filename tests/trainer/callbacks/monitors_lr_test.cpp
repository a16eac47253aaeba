// LearningRateMonitor beside Lightning's.
#include "levin/trainer/callbacks/lr_monitor.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

/// Optimizers as a case describes them; several are stepped by hand.
struct GroupNet : Net {
  explicit GroupNet(Json specs) : optimizers_spec(std::move(specs)) {
    automatic_optimization = optimizers_spec.size() == 1;
  }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    log("t", static_cast<double>(at.batch_idx));
    const auto loss = loss_of(batch);
    if (automatic_optimization) return loss;
    manual_backward(loss);
    for (size_t i = 0; i < optimizers_spec.size(); ++i) {
      optimizer(i).step();
      optimizer(i).zero_grad();
    }
    if (trainer().is_last_batch())
      for (auto& config : trainer().schedulers()) config.scheduler.step();
    return {};
  }
  Optimizers configure_optimizers() override {
    std::vector<OptimizerConfig> configs;
    for (const auto& spec : optimizers_spec) {
      const auto& options = spec.at("options");
      const double rate = options.at("lr");
      std::vector<std::vector<Tensor>> params{{plain->weight, plain->bias}};
      std::vector<double> rates{rate};
      if (spec.contains("groups")) {
        params = {{plain->weight}, {plain->bias}};
        rates = {spec["groups"][0].at("lr"), spec["groups"][1].at("lr")};
      }
      OptimizerConfig config;
      if (spec.at("type") == "SGD") {
        std::vector<optim::SGDGroup> groups;
        for (size_t i = 0; i < params.size(); ++i) groups.push_back({.params = params[i], .lr = rates[i]});
        config.optimizer = optim::SGD(groups, {.lr = rate,
                                               .momentum = options.value("momentum", 0.0),
                                               .weight_decay = options.value("weight_decay", 0.0)});
      } else {
        config.optimizer =
            optim::Adam(params[0], {.lr = rate, .betas = {options.at("betas")[0], options.at("betas")[1]}});
      }
      if (spec.contains("schedule")) config.lr_scheduler = schedule_of(config.optimizer, spec["schedule"]);
      configs.push_back(std::move(config));
    }
    return Optimizers(configs);
  }
  Json optimizers_spec;
};

TEST(LearningRateMonitor, EqualsLightning) {
  int cases = 0;
  for (const auto& expected : cases_of("lr_monitor.json")) {
    const std::string name = expected.at("name");
    if (name == "two named groups") continue;  // groups have no names here
    ++cases;
    const auto& spec = expected.at("monitor");
    const auto monitor = std::make_shared<LearningRateMonitor>(
        LearningRateMonitorOptions{.logging_interval = spec.value("logging_interval", ""),
                                   .log_momentum = spec.value("log_momentum", false),
                                   .log_weight_decay = spec.value("log_weight_decay", false)});
    const auto rows = std::make_shared<Rows>();
    const auto& trainer_spec = expected.at("trainer");
    auto options = quiet({monitor}, trainer_spec.at("max_epochs"));
    options.limit_train_batches = trainer_spec.at("limit_train_batches").get<int64_t>();
    options.log_every_n_steps = trainer_spec.at("log_every_n_steps").get<int64_t>();
    options.accumulate_grad_batches = trainer_spec.value("accumulate_grad_batches", 1);
    options.logger = rows;
    GroupNet net(expected.at("optimizers"));
    Trainer(options).fit(net, loader(64, 1));

    std::vector<Rows::Row> wanted;
    for (const auto& row : expected.at("rows")) {
      std::map<std::string, double> metrics;
      for (const auto& [key, value] : row.at("metrics").items())
        if (key.starts_with("lr-") || key.starts_with("my_rate")) metrics[key] = value;
      if (!metrics.empty()) wanted.emplace_back(row.at("step").get<int64_t>(), metrics);
    }
    const auto found = rows->with({"lr-", "my_rate"});
    ASSERT_EQ(found.size(), wanted.size()) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i].first, wanted[i].first) << name << " row " << i;
      ASSERT_EQ(found[i].second.size(), wanted[i].second.size()) << name << " row " << i;
      for (const auto& [key, value] : wanted[i].second)
        EXPECT_NEAR(found[i].second.at(key), value, 1e-12) << name << " " << key;
    }
    for (const auto& [key, values] : expected.at("lrs").items()) {
      ASSERT_TRUE(monitor->lrs().contains(key)) << name << " " << key;
      EXPECT_THAT(monitor->lrs().at(key),
                  ::testing::Pointwise(::testing::DoubleNear(1e-12), values.get<std::vector<double>>()))
          << name;
    }
  }
  EXPECT_GE(cases, 14);
}

TEST(LearningRateMonitor, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { LearningRateMonitor({.logging_interval = "steps"}); }),
              HasSubstr("did you mean \"step\"?"));
  Net net;
  EXPECT_THAT(error_of([&] { Trainer(quiet({LearningRateMonitor()}, 1)).fit(net, loader(8, 4)); }),
              HasSubstr("no logger"));
}

}  // namespace
}  // namespace levin::tuning_test
