// Callbacks in real runs, beside what Lightning did in the same runs (fixtures/counts.json).
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "levin/testing/paths.h"
#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/callbacks/timer.h"
#include "levin/trainer/trainer.h"
#include "tests/trainer/boring.h"
#include "tests/trainer/callbacks/fake_run.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using levin::testing::TemporaryFolder;

double number_of(const Json& value) {
  if (value.is_string()) return value == "nan" ? std::nan("") : value == "inf" ? double{INFINITY} : -double{INFINITY};
  return value.get<double>();
}

/// The module of the fixtures: logs what a case says, and counts.
struct Scripted : trainer_test::Boring {
  explicit Scripted(const Json& model) {
    if (model.is_object() && model.contains("log")) logs = model["log"];
  }
  void log_in(const std::string& hook, int64_t batch) {
    for (const auto& entry : logs) {
      if (entry["hook"] != hook) continue;
      const bool by_epoch = entry["value"].contains("by_epoch");
      const auto& values = entry["value"][by_epoch ? "by_epoch" : "by_batch"];
      const auto at = std::min<int64_t>(by_epoch ? current_epoch() : batch, std::ssize(values) - 1);
      log(entry["name"].get<std::string>(), number_of(values[static_cast<size_t>(at)]));
    }
  }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    log_in("training_step", at.batch_idx);
    if (on_batch) on_batch();
    return loss_of(batch);
  }
  void on_validation_epoch_end() override { log_in("on_validation_epoch_end", 0); }
  void optimizer_zero_grad(Optimizer& optimizer) override {
    ++zero_grads;
    optimizer.zero_grad();
  }

  Json logs = Json::array();
  std::function<void()> on_batch;
  int64_t zero_grads = 0;
};

Limit limit_of(const Json& value) {
  return value.is_number_integer() ? Limit(value.get<int64_t>()) : Limit(value.get<double>());
}

TrainerOptions options_of(const Json& trainer, const fs::path& root) {
  TrainerOptions o;
  o.accelerator = "cpu";
  o.logger = false;
  o.enable_progress_bar = false;
  o.enable_model_summary = false;
  o.default_root_dir = root;
  for (const auto& [name, value] : trainer.items()) {
    if (name == "max_epochs")
      o.max_epochs = value.get<int64_t>();
    else if (name == "min_epochs")
      o.min_epochs = value.get<int64_t>();
    else if (name == "min_steps")
      o.min_steps = value.get<int64_t>();
    else if (name == "limit_train_batches")
      o.limit_train_batches = limit_of(value);
    else if (name == "limit_val_batches")
      o.limit_val_batches = limit_of(value);
    else if (name == "num_sanity_val_steps")
      o.num_sanity_val_steps = value.get<int64_t>();
    else if (name == "accumulate_grad_batches")
      o.accumulate_grad_batches = value.get<int64_t>();
    else if (name == "val_check_interval")
      o.val_check_interval = value.is_number_integer() ? Interval(value.get<int64_t>()) : Interval(value.get<double>());
    else if (name == "check_val_every_n_epoch")
      o.check_val_every_n_epoch = value.get<int64_t>();
    else if (name == "fast_dev_run")
      o.fast_dev_run = value.is_boolean() ? value.get<bool>() : value.get<int64_t>();
    else
      ADD_FAILURE() << "the test does not know the option " << name;
  }
  return o;
}

/// What the callbacks of a case are made of, and which ones they became.
struct Made {
  std::shared_ptr<EarlyStopping> early_stopping;
  std::shared_ptr<ModelCheckpoint> checkpoint;
};

Made add_callbacks(const Json& callbacks, const fs::path& dirpath, std::function<double()> clock,
                   TrainerOptions& into) {
  Made made;
  for (const auto& c : callbacks) {
    const auto text = [&](const char* name, const std::string& by_default) {
      return c.contains(name) && c[name].is_string() ? c[name].get<std::string>() : by_default;
    };
    const auto optional = [&]<class T>(const char* name, T) {
      return c.contains(name) ? std::optional<T>(c[name].get<T>()) : std::nullopt;
    };
    if (c["type"] == "EarlyStopping") {
      EarlyStoppingOptions o{.monitor = c["monitor"], .mode = text("mode", "min")};
      o.patience = c.value("patience", o.patience);
      o.min_delta = c.value("min_delta", o.min_delta);
      o.strict = c.value("strict", true);
      o.stopping_threshold = optional("stopping_threshold", 0.0);
      o.divergence_threshold = optional("divergence_threshold", 0.0);
      o.check_on_train_epoch_end = optional("check_on_train_epoch_end", false);
      into.callbacks.emplace_back(made.early_stopping = std::make_shared<EarlyStopping>(o));
    } else if (c["type"] == "ModelCheckpoint") {
      ModelCheckpointOptions o{.dirpath = dirpath, .filename = text("filename", ""), .monitor = text("monitor", "")};
      if (c.contains("save_last"))
        o.save_last = c["save_last"].is_string() ? SaveLast("link") : SaveLast(c["save_last"].get<bool>());
      o.save_top_k = c.value("save_top_k", o.save_top_k);
      o.mode = text("mode", "min");
      o.auto_insert_metric_name = c.value("auto_insert_metric_name", true);
      o.every_n_train_steps = optional("every_n_train_steps", int64_t{0});
      o.every_n_epochs = optional("every_n_epochs", int64_t{0});
      o.save_on_train_epoch_end = optional("save_on_train_epoch_end", false);
      if (c.contains("train_time_interval"))
        o.train_time_interval = std::chrono::seconds(c["train_time_interval"].get<int64_t>());
      o.clock = std::move(clock);
      into.callbacks.emplace_back(made.checkpoint = std::make_shared<ModelCheckpoint>(o));
    } else if (c["type"] == "Timer") {
      into.callbacks.emplace_back(Timer({.duration = std::chrono::seconds(c["duration"].get<int64_t>())}));
    } else if (c["type"] == "GradientAccumulationScheduler") {
      GradientAccumulationSchedulerOptions o;
      for (const auto& [epoch, k] : c["scheduling"].items()) o.scheduling[std::stoll(epoch)] = k.get<int64_t>();
      into.callbacks.emplace_back(GradientAccumulationScheduler(o));
    } else {
      ADD_FAILURE() << "the test does not know the callback " << c["type"];
    }
  }
  into.enable_checkpointing = made.checkpoint != nullptr;
  return made;
}

/// Checkpoints below a folder, by their paths in it.
std::set<std::string> checkpoints_in(const fs::path& folder) {
  std::set<std::string> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".ckpt" && fs::exists(entry.path() / "manifest.json"))
      found.insert(entry.path().lexically_relative(folder).string());
  return found;
}

void expect_score(const Json& expected, std::optional<double> score) {
  ASSERT_EQ(score.has_value(), !expected.is_null());
  EXPECT_FLOAT_EQ(score.value_or(0), expected.is_null() ? 0 : number_of(expected));
}

void run_case(const Json& description) {
  SCOPED_TRACE(description.value("name", ""));
  TemporaryFolder folder;
  const auto dirpath = folder.path() / "kept";
  double now = 0;
  Scripted module(description.value("model", Json()));
  module.on_batch = [&] { now += description.value("seconds_per_batch", 0.0); };
  const auto& expect = description["expect"];
  const auto fit = [&](Made& made) {
    auto options = options_of(description["trainer"], folder.path());
    made = add_callbacks(
        description["callbacks"], dirpath, [&] { return now; }, options);
    Trainer trainer(std::move(options));
    trainer.fit(module, trainer_test::boring_loader(), trainer_test::boring_loader());
    EXPECT_EQ(trainer.global_step(), expect["global_step"].get<int64_t>());
    EXPECT_EQ(trainer.current_epoch(), expect["current_epoch"].get<int64_t>());
  };
  Made made;
  if (expect.contains("error")) {
    EXPECT_THROW(fit(made), Error);
    return;
  }
  fit(made);
  EXPECT_EQ(module.zero_grads, expect["zero_grads"].get<int64_t>());
  if (made.checkpoint) {
    EXPECT_EQ(checkpoints_in(dirpath), expect["files"].get<std::set<std::string>>());
    const auto best = made.checkpoint->best_model_path();
    EXPECT_EQ(best.empty() ? "" : best.lexically_relative(dirpath).string(), expect["best"].get<std::string>());
    expect_score(expect["best_score"], made.checkpoint->best_model_score());
    expect_score(expect["current_score"], made.checkpoint->current_score());
    for (const auto& event : expect["checkpoints"]) {
      if (!event.contains("saved") || !fs::exists(dirpath / event["saved"].get<std::string>())) continue;
      if (event["saved"] == "last.ckpt") continue;  // the last one is asked for below
      const auto state = load_checkpoint(dirpath / event["saved"].get<std::string>());
      EXPECT_EQ(state.at("epoch").to_int(), event["epoch"].get<int64_t>());
      EXPECT_EQ(state.at("global_step").to_int(), event["global_step"].get<int64_t>());
    }
    if (const auto last = made.checkpoint->last_model_path(); !last.empty()) {
      EXPECT_EQ(load_checkpoint(last).at("global_step").to_int(), expect["global_step"].get<int64_t>());
    }
  }
  if (made.early_stopping) {
    static const std::map<std::string, StoppingReason> kReasons{
        {"NOT_STOPPED", StoppingReason::kNotStopped},
        {"STOPPING_THRESHOLD", StoppingReason::kStoppingThreshold},
        {"DIVERGENCE_THRESHOLD", StoppingReason::kDivergenceThreshold},
        {"PATIENCE_EXHAUSTED", StoppingReason::kPatienceExhausted},
        {"NON_FINITE_METRIC", StoppingReason::kNonFiniteMetric}};
    const auto& e = expect["early_stopping"];
    EXPECT_EQ(made.early_stopping->stopped_epoch(), e["stopped_epoch"].get<int64_t>());
    EXPECT_EQ(made.early_stopping->wait_count(), e["wait_count"].get<int64_t>());
    EXPECT_FLOAT_EQ(made.early_stopping->best_score(), number_of(e["best_score"]));
    EXPECT_EQ(made.early_stopping->stopping_reason(), kReasons.at(e["reason"].get<std::string>()));
  }
}

void run_cases(const char* file, std::initializer_list<int> numbers) {
  std::ifstream stream(levin::testing::source_dir() + "/tests/trainer/fixtures/" + file);
  const auto fixtures = Json::parse(stream);
  int ran = 0;
  for (const auto& description : fixtures["cases"]) {
    const auto number = description.value("case", 15);
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end() || !description.contains("callbacks"))
      continue;
    run_case(description);
    ++ran;
  }
  EXPECT_GT(ran, 1);
}

TEST(CallbackFixtures, GradientAccumulationScheduler) {
  run_cases("counts.json", {5});
}
TEST(CallbackFixtures, EarlyStopping) {
  run_cases("early_stopping.json", {15});
}
TEST(CallbackFixtures, ModelCheckpointKeepsTheBest) {
  run_cases("counts.json", {18});
}
TEST(CallbackFixtures, ModelCheckpointTriggers) {
  run_cases("counts.json", {19});
}
TEST(CallbackFixtures, FastDevRunAndTimer) {
  run_cases("counts.json", {24});
}

}  // namespace
}  // namespace levin
