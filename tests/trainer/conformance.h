// Runs of Lightning as descriptions (fixtures/README.md), turned into options, a module, callbacks and loaders.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>

#include "levin/data/loader.h"
#include "levin/optim/optim.h"
#include "levin/optim/schedulers.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"
#include "levin/trainer/trainer.h"

namespace levin::conformance {

using Json = nlohmann::json;

inline std::filesystem::path fixture_path(const std::string& name) {
  return std::filesystem::path(levin::testing::source_dir()) / "tests/trainer/fixtures" / name;
}
inline const Json& fixture(const std::string& name) {
  static std::map<std::string, Json> known;
  auto& json = known[name];
  if (json.is_null()) json = Json::parse(std::ifstream(fixture_path(name)));
  return json;
}
/// "x" [64, 32], "x_val" [64, 32], "weight" [2, 32] or "bias" [2].
inline Tensor fixture_tensor(const std::string& name) {
  auto tensor = at::empty(name == "bias" ? at::IntArrayRef{2} : at::IntArrayRef{name == "weight" ? 2 : 64, 32});
  std::ifstream file(fixture_path(name + ".bin"), std::ios::binary);
  file.read(static_cast<char*>(tensor.mutable_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  LEVIN_CHECK(file, "no fixture ", name, ".bin");
  return tensor;
}
/// A number, or "nan", "inf", "-inf".
inline double number_of(const Json& json) {
  return json.is_string() ? std::strtod(json.get_ref<const std::string&>().c_str(), nullptr) : json.get<double>();
}

/// What is said while it lives is not shown.
class Quiet {
 public:
  Quiet() {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
  }
  ~Quiet() {
    ::testing::internal::GetCapturedStdout();
    ::testing::internal::GetCapturedStderr();
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

/// In memory where that can be: hundreds of small checkpoints are synced to disk otherwise.
struct Folder : levin::testing::TemporaryFolder {
  Folder()
      : TemporaryFolder(std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path()) {}
};

inline DataLoader<Batch> loader_of(int64_t samples, int64_t batch_size = 1, const std::string& which = "x",
                                   bool shuffle = false) {
  return make_loader(TensorDataset({{"x", fixture_tensor(which).slice(0, 0, samples)}}),
                     {.batch_size = batch_size, .shuffle = shuffle});
}

/// Arguments of Lightning's Trainer; a bar and a summary only when asked for, no checkpoints unless asked for.
inline TrainerOptions options_of(const Json& trainer) {
  const auto limit = [](const Json& v) {
    return v.is_number_integer() ? Limit(v.get<int64_t>()) : Limit(v.get<double>());
  };
  TrainerOptions o;
  o.accelerator = "cpu";
  o.devices = 1;
  o.enable_progress_bar = o.enable_model_summary = o.enable_checkpointing = false;
  for (const auto& [name, v] : trainer.items()) {
    if (name == "max_epochs")
      o.max_epochs = v.get<int64_t>();
    else if (name == "min_epochs")
      o.min_epochs = v.get<int64_t>();
    else if (name == "max_steps")
      o.max_steps = v.get<int64_t>();
    else if (name == "min_steps")
      o.min_steps = v.get<int64_t>();
    else if (name == "limit_train_batches")
      o.limit_train_batches = limit(v);
    else if (name == "limit_val_batches")
      o.limit_val_batches = limit(v);
    else if (name == "limit_test_batches")
      o.limit_test_batches = limit(v);
    else if (name == "limit_predict_batches")
      o.limit_predict_batches = limit(v);
    else if (name == "overfit_batches")
      o.overfit_batches = limit(v);
    else if (name == "val_check_interval")
      o.val_check_interval = v.is_number_integer() ? Interval(v.get<int64_t>()) : Interval(v.get<double>());
    else if (name == "check_val_every_n_epoch")
      o.check_val_every_n_epoch = v.is_null() ? std::nullopt : std::optional(v.get<int64_t>());
    else if (name == "num_sanity_val_steps")
      o.num_sanity_val_steps = v.get<int64_t>();
    else if (name == "log_every_n_steps")
      o.log_every_n_steps = v.get<int64_t>();
    else if (name == "accumulate_grad_batches")
      o.accumulate_grad_batches = v.get<int64_t>();
    else if (name == "gradient_clip_val")
      o.gradient_clip_val = v.get<double>();
    else if (name == "gradient_clip_algorithm")
      o.gradient_clip_algorithm = v.get<std::string>();
    else if (name == "fast_dev_run")
      o.fast_dev_run = v.is_boolean() ? v.get<bool>() : v.get<int64_t>();
    else if (name == "barebones")
      o.barebones = v.get<bool>();
    else if (name == "enable_checkpointing")
      o.enable_checkpointing = v.get<bool>();
    else if (name == "enable_progress_bar")
      o.enable_progress_bar = v.get<bool>();
    else if (name == "enable_model_summary")
      o.enable_model_summary = v.get<bool>();
    else if (name == "logger")
      o.logger = v.get<bool>();
    else if (name == "detect_anomaly")
      o.detect_anomaly = v.get<bool>();
    else if (name == "profiler")
      o.profiler = v.get<std::string>();
    else
      throw Error("[conformance] no option " + name);
  }
  return o;
}

using Calls = std::vector<std::string>;

/// SGD that notes its calls.
class NotedSgd final : public OptimizerImpl {
 public:
  NotedSgd(Optimizer inner, Calls& calls) : inner_(std::move(inner)), calls_(calls) {}
  std::string name() const override { return inner_.name(); }
  void step() override {
    calls_.push_back("step");
    inner_.step();
  }
  void zero_grad(bool set_to_none) override {
    calls_.push_back("zero_grad");
    inner_.zero_grad(set_to_none);
  }
  size_t num_groups() const override { return inner_.num_groups(); }
  std::vector<Tensor>& params(size_t group) override { return inner_.params(group); }
  double* find_hyper(size_t group, std::string_view name) override { return inner_.impl()->find_hyper(group, name); }
  StateDict state_dict() const override { return inner_.state_dict(); }
  void load_state_dict(const StateDict& state) override { inner_.load_state_dict(state); }

 private:
  Optimizer inner_;
  Calls& calls_;
};

inline SchedulerConfig scheduler_of(const Optimizer& optimizer, const Json& spec) {
  const auto options = spec.value("options", Json::object());
  const auto type = spec.at("type").get<std::string>();
  SchedulerConfig config;
  if (type == "StepLR")
    config.scheduler =
        optim::StepLR(optimizer, {.step_size = options.at("step_size"), .gamma = options.value("gamma", 0.1)});
  else if (type == "CosineAnnealingLR")
    config.scheduler = optim::CosineAnnealingLR(optimizer, {.t_max = options.at("T_max")});
  else if (type == "ReduceLROnPlateau")
    config.scheduler = optim::ReduceLROnPlateau(
        optimizer, {.mode = options.at("mode"), .factor = options.at("factor"), .patience = options.at("patience")});
  else
    throw Error("[conformance] no scheduler " + type);
  config.interval = spec.value("interval", "epoch");
  config.frequency = spec.value("frequency", 1);
  config.monitor = spec.value("monitor", "");
  config.strict = spec.value("strict", true);
  return config;
}

/// Linear(32, 2) that does what a case asks for.
struct Net : TrainModule {
  explicit Net(Json model = Json::object())
      : layer(register_module("layer", torch::nn::Linear(32, 2))), model_(std::move(model)) {
    const at::NoGradGuard no_grad;
    layer->weight.copy_(fixture_tensor("weight"));
    layer->bias.copy_(fixture_tensor("bias"));
    automatic_optimization = !model_.value("manual", false);
  }

  Tensor loss_of(const Batch& batch) {
    const auto y = layer(batch["x"]);
    return at::mse_loss(y, at::ones_like(y));
  }

  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    calls.push_back("training_step");
    Tensor loss;
    if (automatic_optimization) {
      loss = loss_of(batch);
    } else {
      for (size_t i = 0; i < optimizers().size(); ++i) {
        for (int pass = 0; pass < (i == 0 ? 1 : 2); ++pass) manual_backward(loss = loss_of(batch));
        optimizer(i).step();
        optimizer(i).zero_grad();
      }
    }
    log_all("training_step", loss, at.batch_idx);
    if (at.batch_idx == model_.value("stop_at_batch", -1)) trainer().stop("a test");
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo& at) override {
    auto loss = loss_of(batch);
    log_all("validation_step", loss, at.batch_idx);
    return loss;
  }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return loss_of(batch); }
  StepOutput predict_step(const Batch& batch, const StepInfo&) override { return StepOutput(layer(batch["x"])); }
  void on_validation_epoch_end() override { log_all("on_validation_epoch_end"); }
  void on_train_epoch_end() override { log_all("on_train_epoch_end"); }
  void backward(const Tensor& loss) override {
    calls.push_back("backward");
    run_backward(loss);
  }
  void optimizer_step(Optimizer& optimizer, const std::function<Tensor()>& closure) override {
    // Here torch's optimizer begins its step, and asks for the closure inside it.
    begun_.push_back(calls.size());
    TrainModule::optimizer_step(optimizer, closure);
  }

  Optimizers configure_optimizers() override {
    estimated_early = trainer().estimated_stepping_batches();
    const auto sgd = model_.value("sgd", Json::object());
    std::vector<OptimizerConfig> configs;
    for (int64_t i = 0; i < model_.value("optimizers", 1); ++i) {
      const optim::SGD inner(parameters(), {.lr = model_.value("lr", 0.1),
                                            .momentum = sgd.value("momentum", 0.0),
                                            .weight_decay = sgd.value("weight_decay", 0.0)});
      configs.push_back({.optimizer = Optimizer(std::make_shared<NotedSgd>(inner, calls))});
    }
    if (model_.contains("schedule")) configs[0].lr_scheduler = scheduler_of(configs[0].optimizer, model_["schedule"]);
    return Optimizers(std::move(configs));
  }

  int64_t count(const std::string& name) const { return std::count(calls.begin(), calls.end(), name); }
  /// The calls as torch's optimizer sees them: a step begins before its closure.
  Calls calls_as_begun() const {
    if (begun_.empty()) return calls;
    Calls result;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (std::find(begun_.begin(), begun_.end(), i) != begun_.end()) result.push_back("step");
      if (calls[i] != "step") result.push_back(calls[i]);
    }
    return result;
  }

  torch::nn::Linear layer;
  Calls calls;
  /// estimated_stepping_batches as configure_optimizers sees it.
  std::optional<int64_t> estimated_early;

 private:
  void log_all(const std::string& hook, const Tensor& loss = {}, int64_t batch_idx = 0) {
    if (!model_.contains("log")) return;
    for (const auto& item : model_["log"]) {
      if (item["hook"] != hook) continue;
      const auto& source = item["value"];
      const auto given = item.value("options", Json::object());
      const auto reduce_fx = given.value("reduce_fx", "mean");
      LogOptions options{.reduce_fx = reduce_fx};
      if (given.contains("on_step")) options.on_step = given["on_step"].get<bool>();
      if (given.contains("on_epoch")) options.on_epoch = given["on_epoch"].get<bool>();
      if (given.contains("batch_size")) options.batch_size = given["batch_size"][batch_idx].get<int64_t>();
      const auto name = item["name"].get<std::string>();
      if (source == "loss") {
        log(name, loss.detach(), options);
      } else if (source == "batch_idx") {
        log(name, static_cast<double>(batch_idx), options);
      } else if (source == "epoch") {
        log(name, static_cast<double>(current_epoch()), options);
      } else {
        const bool by_epoch = source.contains("by_epoch");
        const auto& values = source[by_epoch ? "by_epoch" : "by_batch"];
        const auto at = std::min<size_t>(by_epoch ? current_epoch() : batch_idx, values.size() - 1);
        log(name, number_of(values[at]), options);
      }
    }
  }

  const Json model_;
  std::vector<size_t> begun_;
};

/// A logger that keeps its rows.
struct Rows : Logger {
  void log_metrics(const Metrics& metrics, std::optional<int64_t> step) override {
    Json row{{"step", step ? Json(*step) : Json()}, {"metrics", Json::object()}};
    for (const auto& [name, value] : metrics)
      row["metrics"][name] = std::visit(
          []<class V>(const V& v) -> double {
            if constexpr (std::same_as<V, Tensor>)
              return v.template item<double>();
            else
              return static_cast<double>(v);
          },
          value);
    rows.push_back(row);
  }
  void log_hyperparams(const StateDict&) override {}
  void save() override {}
  void finalize(const std::string&) override {}
  std::filesystem::path log_dir() const override { return folder; }

  Json rows = Json::array();
  std::filesystem::path folder = ".";
};

/// Counts what happened, and keeps what a run knows at its end.
struct Watch : Callback {
  void on_train_epoch_start(TrainerContext&) override { ++epochs; }
  void on_train_batch_start(TrainerContext&, const AnyBatch&, int64_t) override { ++batches; }
  void on_validation_batch_start(TrainerContext& run, const AnyBatch&, const StepInfo&) override {
    ++(run.sanity_checking() ? sanity_batches : val_batches);
  }
  void on_validation_epoch_start(TrainerContext& run) override {
    if (!run.sanity_checking())
      validated_at.push_back(Json{run.current_epoch(), run.global_step(), run.progress().total_batches});
  }
  void on_save_checkpoint(TrainerContext&, StateDict& checkpoint) override {
    saved.push_back(Json{checkpoint.at("epoch").to_int(), checkpoint.at("global_step").to_int()});
  }
  void teardown(TrainerContext& run, std::string_view) override {
    num_training_batches = run.num_training_batches();
    for (const auto& n : run.num_eval_batches()) num_val_batches.push_back(*n);
    estimated = run.estimated_stepping_batches();
    callback_metrics = run.metrics().callback_metrics();
    logged_metrics = run.metrics().logged_metrics();
  }

  int64_t epochs = 0, batches = 0, sanity_batches = 0, val_batches = 0;
  Json validated_at = Json::array(), num_val_batches = Json::array(), saved = Json::array();
  std::optional<int64_t> num_training_batches, estimated;
  std::map<std::string, std::variant<double, Tensor>> callback_metrics, logged_metrics;
};

inline double value_of(const std::variant<double, Tensor>& value) {
  const auto* number = std::get_if<double>(&value);
  return number ? *number : std::get<Tensor>(value).item<double>();
}

inline ::testing::AssertionResult near(double a, double b) {
  const bool same = a == b || (a != a && b != b) || std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << a << " in place of " << b;
}

inline void expect_metrics(const std::map<std::string, std::variant<double, Tensor>>& metrics, const Json& expected) {
  Json names = Json::array(), expected_names = Json::array();
  for (const auto& [name, value] : metrics) {
    names.push_back(name);
    if (expected.contains(name)) {
      EXPECT_TRUE(near(value_of(value), number_of(expected[name]))) << name;
    }
  }
  for (const auto& [name, value] : expected.items()) expected_names.push_back(name);
  EXPECT_EQ(names, expected_names);
}

/// Weights to 1e-6.
inline void expect_weights(const torch::nn::Module& module, const Json& expected) {
  size_t found = 0;
  for (const auto& item : module.named_parameters()) {
    ASSERT_TRUE(expected.contains(item.key())) << item.key();
    ++found;
    const auto flat = item.value().detach().reshape({-1});
    std::vector<double> want;
    const auto& json = expected[item.key()];
    for (const auto& row : json)
      if (row.is_array())
        for (const auto& v : row) want.push_back(v.get<double>());
      else
        want.push_back(row.get<double>());
    ASSERT_EQ(want.size(), static_cast<size_t>(flat.numel()));
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(flat[static_cast<int64_t>(i)].item<double>(), want[i], 1e-6) << item.key() << " " << i;
  }
  EXPECT_EQ(found, expected.size());
}

}  // namespace levin::conformance
