// How often things happen, in every case that was recorded from Lightning: fixtures/counts.json, early_stopping.json.
#include <set>

#include "levin/trainer/callbacks/checkpointing/model_checkpoint.h"
#include "levin/trainer/callbacks/early_stopping.h"
#include "levin/trainer/callbacks/gradient_accumulation_scheduler.h"
#include "levin/trainer/callbacks/timer.h"
#include "tests/trainer/conformance.h"

namespace levin::conformance {
namespace {

Duration seconds(const Json& json) {
  return std::chrono::duration<double>(json.get<double>());
}

std::shared_ptr<ModelCheckpoint> model_checkpoint_of(const Json& spec, const std::filesystem::path& folder) {
  ModelCheckpointOptions o{.dirpath = folder};
  for (const auto& [name, v] : spec.items()) {
    if (name == "type") continue;
    if (name == "filename")
      o.filename = v.is_null() ? "" : v.get<std::string>();
    else if (name == "monitor")
      o.monitor = v.get<std::string>();
    else if (name == "save_top_k")
      o.save_top_k = v.get<int64_t>();
    else if (name == "save_last")
      o.save_last = v.is_boolean() ? SaveLast(v.get<bool>()) : SaveLast(v.get_ref<const std::string&>().c_str());
    else if (name == "mode")
      o.mode = v.get<std::string>();
    else if (name == "every_n_epochs")
      o.every_n_epochs = v.get<int64_t>();
    else if (name == "every_n_train_steps")
      o.every_n_train_steps = v.get<int64_t>();
    else if (name == "train_time_interval")
      o.train_time_interval = seconds(v);
    else if (name == "save_weights_only")
      o.save_weights_only = v.get<bool>();
    else if (name == "save_on_train_epoch_end")
      o.save_on_train_epoch_end = v.get<bool>();
    else if (name == "auto_insert_metric_name")
      o.auto_insert_metric_name = v.get<bool>();
    else
      throw Error("[conformance] no option of ModelCheckpoint " + name);
  }
  return std::make_shared<ModelCheckpoint>(std::move(o));
}

std::shared_ptr<EarlyStopping> early_stopping_of(const Json& spec) {
  EarlyStoppingOptions o;
  for (const auto& [name, v] : spec.items()) {
    if (name == "type") continue;
    if (name == "monitor")
      o.monitor = v.get<std::string>();
    else if (name == "patience")
      o.patience = v.get<int64_t>();
    else if (name == "mode")
      o.mode = v.get<std::string>();
    else if (name == "min_delta")
      o.min_delta = v.get<double>();
    else if (name == "strict")
      o.strict = v.get<bool>();
    else if (name == "stopping_threshold")
      o.stopping_threshold = v.get<double>();
    else if (name == "divergence_threshold")
      o.divergence_threshold = v.get<double>();
    else if (name == "check_on_train_epoch_end")
      o.check_on_train_epoch_end = v.get<bool>();
    else
      throw Error("[conformance] no option of EarlyStopping " + name);
  }
  return std::make_shared<EarlyStopping>(std::move(o));
}

void expect_early_stopping(const EarlyStopping& callback, const Json& expect) {
  static const std::map<std::string, StoppingReason> kReasons{
      {"NOT_STOPPED", StoppingReason::kNotStopped},
      {"STOPPING_THRESHOLD", StoppingReason::kStoppingThreshold},
      {"DIVERGENCE_THRESHOLD", StoppingReason::kDivergenceThreshold},
      {"PATIENCE_EXHAUSTED", StoppingReason::kPatienceExhausted},
      {"NON_FINITE_METRIC", StoppingReason::kNonFiniteMetric}};
  EXPECT_EQ(callback.stopped_epoch(), expect["stopped_epoch"]);
  EXPECT_EQ(callback.wait_count(), expect["wait_count"]);
  EXPECT_TRUE(near(callback.best_score(), number_of(expect["best_score"])));
  EXPECT_EQ(callback.stopping_reason(), kReasons.at(expect["reason"]));
}

/// Every *.ckpt below a folder, whatever it is made of.
std::set<std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  if (!std::filesystem::exists(folder)) return names;
  for (auto it = std::filesystem::recursive_directory_iterator(folder); it != std::filesystem::end(it); ++it)
    if (it->path().extension() == ".ckpt") {
      names.insert(it->path().lexically_relative(folder).string());
      it.disable_recursion_pending();
    }
  return names;
}

void expect_checkpoints(const ModelCheckpoint& callback, const Watch& watch, const std::filesystem::path& folder,
                        const Json& expect) {
  // last.ckpt is not written as a state of its own where it can be had from one that was, so it is no event.
  Json saved = Json::array();
  for (const auto& event : expect["checkpoints"])
    if (event.contains("saved") && event["saved"] != "last.ckpt")
      saved.push_back(Json{event["epoch"], event["global_step"]});
  // And it is always the newest, also where Lightning leaves it at the newest of the best.
  if (callback.options().save_last.is_on() && !callback.options().monitor.empty()) {
    EXPECT_EQ(watch.saved.back(), saved.back());
    for (const auto& event : saved)
      EXPECT_NE(std::find(watch.saved.begin(), watch.saved.end(), event), watch.saved.end());
  } else {
    EXPECT_EQ(watch.saved, saved);
  }
  EXPECT_EQ(checkpoints_in(folder), expect["files"].get<std::set<std::string>>());
  const auto best = callback.best_model_path();
  EXPECT_EQ(best.empty() ? "" : best.lexically_relative(folder).string(), expect["best"].get<std::string>());
  if (expect["best_score"].is_null())
    EXPECT_FALSE(callback.best_model_score());
  else
    EXPECT_TRUE(near(callback.best_model_score().value_or(0), number_of(expect["best_score"])));
  if (!expect["current_score"].is_null()) {
    EXPECT_TRUE(near(callback.current_score().value_or(0), number_of(expect["current_score"])));
  }
}

/// What a case's callbacks are, and what they are asked afterwards.
struct Callbacks {
  std::vector<CallbackRef> list;
  bool keeps_checkpoints = false;
  std::function<void(const Watch&, const Json&)> expect = [](const Watch&, const Json&) {};
};

Callbacks callbacks_of(const Json& test, const std::shared_ptr<Watch>& watch, const std::filesystem::path& folder) {
  Callbacks result;
  result.list.emplace_back(watch);
  for (const auto& spec : test.value("callbacks", Json::array())) {
    const auto type = spec["type"].get<std::string>();
    if (type == "ModelCheckpoint") {
      const auto checkpoints = folder / "checkpoints";
      auto callback = model_checkpoint_of(spec, checkpoints);
      if (test.contains("seconds_per_batch")) {
        auto options = callback->options();
        options.clock = [watch, pace = test["seconds_per_batch"].get<double>()] {
          return pace * static_cast<double>(watch->batches);
        };
        callback = std::make_shared<ModelCheckpoint>(std::move(options));
      }
      result.list.emplace_back(callback);
      result.keeps_checkpoints = true;
      result.expect = [callback, checkpoints](const Watch& seen, const Json& expect) {
        expect_checkpoints(*callback, seen, checkpoints, expect);
      };
    } else if (type == "EarlyStopping") {
      auto callback = early_stopping_of(spec);
      result.list.emplace_back(callback);
      result.expect = [callback](const Watch&, const Json& expect) {
        expect_early_stopping(*callback, expect["early_stopping"]);
      };
    } else if (type == "GradientAccumulationScheduler") {
      GradientAccumulationSchedulerOptions options;
      for (const auto& [epoch, k] : spec["scheduling"].items()) options.scheduling[std::stoll(epoch)] = k;
      result.list.emplace_back(GradientAccumulationScheduler(std::move(options)));
    } else if (type == "Timer") {
      result.list.emplace_back(Timer({.duration = seconds(spec["duration"])}));
    } else {
      throw Error("[conformance] no callback " + type);
    }
  }
  return result;
}

void expect_rows(const Json& rows, const Json& expected) {
  ASSERT_EQ(rows.size(), expected.size()) << rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i]["step"], expected[i]["step"]) << i;
    Json names = Json::array(), expected_names = Json::array();
    for (const auto& [name, value] : expected[i]["metrics"].items()) {
      expected_names.push_back(name);
      if (rows[i]["metrics"].contains(name)) {
        EXPECT_TRUE(near(rows[i]["metrics"][name], number_of(value))) << i << " " << name;
      }
    }
    for (const auto& [name, value] : rows[i]["metrics"].items()) names.push_back(name);
    EXPECT_EQ(names, expected_names) << i;
  }
}

void run_case(const Json& test) {
  const Folder folder;
  const auto& expect = test["expect"];
  const auto watch = std::make_shared<Watch>();
  const auto rows = std::make_shared<Rows>();
  rows->folder = folder.path();
  Net net(test.value("model", Json::object()));
  Callbacks callbacks;
  std::unique_ptr<Trainer> trainer;
  std::string error;
  try {
    const Quiet quiet;
    callbacks = callbacks_of(test, watch, folder.path());
    const auto& asked = test["trainer"];
    auto options = options_of(asked);
    options.default_root_dir = folder.path();
    options.callbacks = callbacks.list;
    if (!asked.contains("barebones") && !asked.contains("logger")) options.logger = rows;
    if (callbacks.keeps_checkpoints) options.enable_checkpointing = {};
    trainer = std::make_unique<Trainer>(std::move(options));
    const auto data = test.value("data", Json::object());
    const int64_t batch_size = data.value("batch_size", 1);
    std::vector<DataLoader<Batch>> val;
    for (const auto& samples : data.value("val", Json{64})) val.push_back(loader_of(samples, batch_size, "x_val"));
    trainer->fit(net, loader_of(data.value("train", 64), batch_size), val);
  } catch (const Error& e) {
    error = e.what();
  }
  if (expect.contains("error")) {
    EXPECT_FALSE(error.empty()) << "nothing was refused";
    EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 0) << error;
    return;
  }
  ASSERT_EQ(error, "");
  EXPECT_EQ(watch->batches, expect["batches"]);
  EXPECT_EQ(watch->epochs, expect["epochs_started"]);
  EXPECT_EQ(watch->validated_at, expect["validated_at"]);
  EXPECT_EQ(watch->val_batches, expect["val_batches"]);
  EXPECT_EQ(watch->sanity_batches, expect["sanity_batches"]);
  EXPECT_EQ(trainer->global_step(), expect["global_step"]);
  EXPECT_EQ(trainer->current_epoch(), expect["current_epoch"]);
  // A run that trains nothing does not ask for its loaders, so it does not know how long they are. One that comes to no
  // validation knows that of its validation loaders; Lightning asks for those when the first validation comes.
  if (expect["batches"] != 0) {
    EXPECT_EQ(Json(watch->num_training_batches.value_or(-1)), expect["num_training_batches"]);
  }
  if (expect["val_batches"] != 0) {
    EXPECT_EQ(watch->num_val_batches, expect["num_val_batches"]);
  }
  EXPECT_EQ(net.count("zero_grad"), expect["zero_grads"]);
  EXPECT_EQ(net.count("step"), expect["steps"]);
  EXPECT_EQ(net.count("training_step"), expect["training_steps"]);
  EXPECT_EQ(net.count("backward"), expect["backwards"]);
  if (expect.contains("calls")) {
    EXPECT_EQ(Json(net.calls_as_begun()), expect["calls"]);
  }
  if (expect.contains("estimated_stepping_batches")) {
    EXPECT_EQ(watch->estimated.value_or(-1), expect["estimated_stepping_batches"]);
    EXPECT_EQ(net.estimated_early.value_or(-1), expect["estimated_stepping_batches"]) << "in configure_optimizers";
  }
  if (expect.contains("rows")) {
    expect_rows(rows->rows, expect["rows"]);
    expect_metrics(trainer->callback_metrics(), expect["callback_metrics"]);
  }
  callbacks.expect(*watch, expect);
}

void run_family(const Json& cases, int number, size_t least) {
  size_t found = 0;
  for (const auto& test : cases) {
    if (test.value("case", 0) != number) continue;
    ++found;
    SCOPED_TRACE(test.value("name", test.dump()));
    run_case(test);
  }
  EXPECT_GE(found, least);
}

const Json& counts() {
  return fixture("counts.json")["cases"];
}

TEST(ConformanceCounts, OrderOfCalls) {
  run_family(counts(), 4, 2);
}
TEST(ConformanceCounts, Accumulation) {
  run_family(counts(), 5, 5);
}
TEST(ConformanceCounts, Limits) {
  run_family(counts(), 7, 19);
}
TEST(ConformanceCounts, Overfit) {
  run_family(counts(), 8, 5);
}
TEST(ConformanceCounts, ValCheckInterval) {
  run_family(counts(), 9, 14);
}
TEST(ConformanceCounts, CheckValEveryNEpoch) {
  run_family(counts(), 12, 4);
}
TEST(ConformanceCounts, StepsAndEpochs) {
  run_family(counts(), 13, 13);
}
TEST(ConformanceCounts, EarlyStopping) {
  run_family(counts(), 15, 13);
}
TEST(ConformanceCounts, StopRequests) {
  run_family(counts(), 16, 4);
}
TEST(ConformanceCounts, BestCheckpoints) {
  run_family(counts(), 18, 19);
}
TEST(ConformanceCounts, WhenCheckpointsAreSaved) {
  run_family(counts(), 19, 8);
}
TEST(ConformanceCounts, Rows) {
  run_family(counts(), 21, 12);
}
TEST(ConformanceCounts, EstimatesAndManualOptimization) {
  run_family(counts(), 23, 10);
}
TEST(ConformanceCounts, FastDevRunBarebonesTimer) {
  run_family(counts(), 24, 17);
}
TEST(ConformanceCounts, EarlyStoppingWithMinima) {
  run_family(fixture("early_stopping.json")["cases"], 0, 23);
}

TEST(ConformanceCounts, EveryFamilyIsRun) {
  const std::set<int> run{4, 5, 7, 8, 9, 12, 13, 15, 16, 18, 19, 21, 23, 24};
  for (const auto& test : counts()) EXPECT_TRUE(run.contains(test["case"])) << test["name"];
}

}  // namespace
}  // namespace levin::conformance
