#include "levin/trainer/trainer_fields.h"

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/cli/callbacks.h"
#include "levin/cli/optimizers.h"
#include "levin/config/config.h"
#include "levin/config/yaml.h"
#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"

namespace levin {
namespace {

using config::Node;
using testing::error_of;
using ::testing::HasSubstr;

config::Config config_of(TrainerOptions& options) {
  std::vector<config::Field> fields;
  add_trainer_fields(fields, options);
  return {"levin fit", std::move(fields), {{"trainer", "Trainer:"}}};
}

/// Comments say who set a value, which is not the value.
std::string values_of(const std::string& yaml) {
  std::istringstream in(yaml);
  std::string out;
  for (std::string line; std::getline(in, line);) out += line.substr(0, line.find("  #")) + "\n";
  return out;
}

TEST(TrainerFields, EveryOptionHasOne) {
  auto text = read_file(testing::source_dir() + "/levin/trainer/options.h");
  text = text.substr(text.find("struct TrainerOptions {"));
  text = text.substr(0, text.find("\n};"));
  const std::regex member(R"(\n  [\w:<>]+ (\w+) = )");
  std::set<std::string> asked;
  for (std::sregex_iterator it(text.begin(), text.end(), member), end; it != end; ++it) asked.insert((*it)[1]);
  ASSERT_GE(asked.size(), 40u);
  TrainerOptions options;
  std::vector<config::Field> fields;
  add_trainer_fields(fields, options);
  std::set<std::string> found{"callbacks", "profiler"};  // by name: levin/cli/callbacks.h, profilers/registry.h
  for (const auto& field : fields) {
    const auto rest = field.name.substr(std::string("trainer.").size());
    found.insert(rest.substr(0, rest.find('.')));
    EXPECT_FALSE(field.help.empty()) << field.name;
  }
  EXPECT_EQ(found, asked);
}

TEST(TrainerFields, DefaultsPrintedAndReadBackAreTheSame) {
  TrainerOptions options, back;
  const auto text = config_of(options).to_yaml();
  auto config = config_of(back);
  config.add_recipe(text, "printed");
  EXPECT_EQ(values_of(config.to_yaml()), values_of(text));
  EXPECT_FALSE(back.logger.is_set());
  EXPECT_FALSE(back.deterministic.is_set());
  EXPECT_FALSE(back.max_epochs);
}

TEST(TrainerFields, EveryKindOfValueComesBack) {
  TrainerOptions options;
  auto config = config_of(options);
  config.add_arguments({"--trainer.devices=0,2", "--trainer.strategy=ddp", "--trainer.precision=bf16-mixed",
                        "--trainer.logger=csv,json", "--trainer.max_time=90 min", "--trainer.limit_train_batches=0.5",
                        "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1.0",
                        "--trainer.val_check_interval=500 steps", "--trainer.check_val_every_n_epoch=null",
                        "--trainer.deterministic=warn", "--trainer.fast_dev_run", "--trainer.default_root_dir=my runs",
                        "--trainer.plugins.grad_scaler.init_scale=128", "--trainer.max-epochs", "-1",
                        "--trainer.enable_progress_bar=false"});
  EXPECT_EQ(options.fast_dev_run, 1);
  EXPECT_EQ(options.max_epochs, -1);
  EXPECT_EQ(options.check_val_every_n_epoch, std::nullopt);
  EXPECT_EQ(options.plugins.grad_scaler.init_scale, 128);
  const auto text = config.to_yaml();
  TrainerOptions back;
  auto second = config_of(back);
  second.add_recipe(text, "printed");
  EXPECT_EQ(values_of(second.to_yaml()), values_of(text));
  EXPECT_EQ(back.devices.text(), "0,2");
  EXPECT_EQ(back.strategy.name(), "ddp");
  EXPECT_EQ(back.logger.names(), "csv,json");
  EXPECT_EQ(back.max_time->seconds(), 5400);
  EXPECT_TRUE(back.limit_train_batches->is_fraction());
  EXPECT_EQ(back.limit_val_batches->count(), 1);
  EXPECT_TRUE(back.limit_test_batches->is_all());
  EXPECT_EQ(back.val_check_interval->unit(), Interval::Unit::kSteps);
  EXPECT_TRUE(back.deterministic.only_warns());
  EXPECT_EQ(back.default_root_dir, "my runs");
  EXPECT_EQ(back.enable_progress_bar, false);
}

TEST(TrainerFields, ListsOfDevicesAndLoggersInFiles) {
  TrainerOptions options;
  auto config = config_of(options);
  config.add_recipe("trainer: {devices: [1], logger: [csv, console]}", "t");
  EXPECT_EQ(options.devices.text(), "1,");
  EXPECT_EQ(options.logger.names(), "csv,console");
  config.add_recipe("trainer: {devices: 2, logger: false}", "t");
  EXPECT_EQ(options.devices.text(), "2");
  EXPECT_TRUE(options.logger.is_set() && options.logger.is_off());
}

TEST(TrainerFields, RefusalsNameThePlaceAndTheNearestWord) {
  const auto refused = [](const std::string& yaml) {
    return error_of([&] {
      TrainerOptions options;
      config_of(options).add_recipe(yaml, "run.yaml");
    });
  };
  EXPECT_THAT(refused("trainer:\n  strategy: dpd"), HasSubstr("run.yaml:2: trainer.strategy \"dpd\" is refused"));
  EXPECT_THAT(refused("trainer:\n  strategy: dpd"), HasSubstr("did you mean \"ddp\"?"));
  EXPECT_THAT(refused("trainer:\n  precision: bf16-mixd"), HasSubstr("did you mean \"bf16-mixed\"?"));
  EXPECT_THAT(refused("trainer:\n  accelerator: cdua"), HasSubstr("did you mean \"cuda\"?"));
  EXPECT_THAT(refused("trainer:\n  max_time: soon"), HasSubstr("\"soon\" is no time"));
  EXPECT_THAT(refused("trainer:\n  limit_train_batches: some"), HasSubstr("\"some\" is no limit"));
  EXPECT_THAT(refused("trainer:\n  deterministic: perhaps"), HasSubstr("is not true or false"));
}

/// A class from a table with the options of a small YAML map.
config::Chosen chosen(const std::vector<config::Class>& table, const std::string& name, const std::string& yaml = "") {
  for (const auto& one : table) {
    if (one.name != name) continue;
    config::Chosen result{.name = name, .options = one.options()};
    for (const auto& [key, value] : config::parse_yaml("{" + yaml + "}", "t").entries)
      for (const auto& field : result.options.fields())
        if (field.name == key) field.read(value);
    return result;
  }
  throw Error("[test] no class " + name);
}

TEST(Optimizers, EveryOptionOfEachHasAField) {
  for (const auto& one : cli::optimizer_classes()) {
    const auto optimizer =
        cli::make_optimizer(chosen(cli::optimizer_classes(), one.name), {torch::zeros({2}).requires_grad_()});
    EXPECT_EQ(optimizer.name(), one.name);
    std::set<std::string> fields, options{};
    const auto held = one.options();
    for (const auto& field : held.fields()) fields.insert(field.name);
    const auto state = optimizer.state_dict();
    for (const auto& [name, value] : state.at("param_groups").to_list().at(0).to_dict())
      if (name != "params" && name != "initial_lr") options.insert(name);
    fields.erase("moments_dtype");  // what the moments are made in: they themselves tell
    for (const auto& field : fields)
      EXPECT_TRUE(options.contains(field) || options.contains(field == "eps1" || field == "eps2" ? "eps" : field))
          << one.name << " " << field;
  }
}

TEST(Optimizers, NamesAreFoundInLettersOfEitherCase) {
  const auto name_of = [](const char* word) {
    const auto* found = config::find_class(cli::optimizer_classes(), word);
    return found ? found->name : "";
  };
  for (const auto* word : {"AdamW", "adamw", "ADAMW"}) EXPECT_EQ(name_of(word), "AdamW") << word;
  for (const auto* word : {"lamb", "LAMB"}) EXPECT_EQ(name_of(word), "Lamb") << word;
  EXPECT_EQ(name_of("adamww"), "");
}

TEST(Optimizers, OptionsReachThem) {
  const auto optimizer = cli::make_optimizer(chosen(cli::optimizer_classes(), "AdamW", "lr: 0.25, betas: [0.5, 0.75]"),
                                             {torch::zeros({2}).requires_grad_()});
  EXPECT_EQ(optimizer.lr(), 0.25);
  EXPECT_EQ(optimizer.hyper("beta2"), 0.75);
}

TEST(Schedulers, EachCanBeMadeByName) {
  const std::map<std::string, std::string> needed{{"StepLR", "step_size: 2"},
                                                  {"MultiStepLR", "milestones: [2]"},
                                                  {"ExponentialLR", "gamma: 0.5"},
                                                  {"CosineAnnealingWarmRestarts", "t_0: 4"}};
  for (const auto& one : cli::scheduler_classes()) {
    const auto optimizer =
        cli::make_optimizer(chosen(cli::optimizer_classes(), "AdamW"), {torch::zeros({2}).requires_grad_()});
    const auto at = needed.find(one.name);
    const auto made =
        cli::make_scheduler(chosen(cli::scheduler_classes(), one.name, at == needed.end() ? "" : at->second), optimizer,
                            {.steps = 100, .epochs = 10});
    EXPECT_TRUE(made.scheduler) << one.name;
    if (one.name != "LinearWarmupCosine") {  // that one is two schedulers
      EXPECT_EQ(made.scheduler.name(), one.name);
    }
    const bool by_step = one.name == "OneCycleLR" || one.name == "LinearWarmupCosine";
    EXPECT_EQ(made.interval, by_step ? "step" : "epoch") << one.name;
    EXPECT_EQ(made.scheduler.needs_metric(), !made.monitor.empty()) << one.name;
  }
}

TEST(Schedulers, LengthsLeftOutAreThoseOfTheRun) {
  const auto sgd = [] {
    return cli::make_optimizer(chosen(cli::optimizer_classes(), "SGD", "lr: 1, momentum: 0.9"),
                               {torch::zeros({2}).requires_grad_()});
  };
  const auto lowest = [](SchedulerConfig made, int steps) {
    for (int i = 0; i < steps; ++i) made.scheduler.step();
    return made.scheduler.last_lr()[0];
  };
  const cli::RunLength length{.steps = 100, .epochs = 10};
  const auto& table = cli::scheduler_classes();
  EXPECT_NEAR(lowest(cli::make_scheduler(chosen(table, "CosineAnnealingLR"), sgd(), length), 10), 0, 1e-9);
  EXPECT_NEAR(lowest(cli::make_scheduler(chosen(table, "CosineAnnealingLR", "interval: step"), sgd(), length), 100), 0,
              1e-9);
  EXPECT_NEAR(lowest(cli::make_scheduler(chosen(table, "OneCycleLR", "pct_start: 0.5"), sgd(), length), 50), 1, 0.01);
  EXPECT_NEAR(lowest(cli::make_scheduler(chosen(table, "CosineAnnealingLR", "t_max: 4"), sgd(), length), 4), 0, 1e-9);
}

TEST(Callbacks, EachCanBeMadeByName) {
  const std::map<std::string, std::string> needed{{"EarlyStopping", "monitor: val_loss"},
                                                  {"SafetensorsPredictionWriter", "output_dir: out"},
                                                  {"StochasticWeightAveraging", "swa_lrs: 0.1"},
                                                  {"GradientAccumulationScheduler", "scheduling: {0: 8, 4: 4}"}};
  for (const auto& one : cli::callback_classes()) {
    const auto at = needed.find(one.name);
    const auto made = chosen(cli::callback_classes(), one.name, at == needed.end() ? "" : at->second);
    EXPECT_TRUE(cli::make_callback(made).get()) << one.name;
    // What is printed is read back as the same.
    auto again = chosen(cli::callback_classes(), one.name);
    for (size_t i = 0; i < made.options.fields().size(); ++i) {
      const auto& field = made.options.fields()[i];
      EXPECT_FALSE(field.help.empty()) << one.name << " " << field.name;
      again.options.fields()[i].read(config::parse_yaml("v: " + field.write().to_string(), "t").find("v")[0]);
      EXPECT_EQ(again.options.fields()[i].write().to_string(), field.write().to_string())
          << one.name << " " << field.name;
    }
  }
}

}  // namespace
}  // namespace levin
