#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/data/loader.h"
#include "levin/optim/optim.h"
#include "levin/testing/error_of.h"
#include "levin/testing/paths.h"
#include "levin/testing/temporary_folder.h"
#include "levin/trainer/trainer.h"

// The model and the data of tests/trainer/fixtures (README.md there), and what the tests of tuning callbacks share.
namespace levin::tuning_test {

using testing::error_of;
using testing::TemporaryFolder;

using Json = nlohmann::json;
using ::testing::HasSubstr;

inline std::string fixture_path(const std::string& name) {
  return levin::testing::source_dir() + "/tests/trainer/fixtures/" + name;
}
/// A value, not a part of one: a loop over it must keep it alive.
inline Json cases_of(const std::string& name) {
  return Json::parse(read_file(fixture_path(name))).at("cases");
}
inline Tensor fixture_tensor(const std::string& name, at::IntArrayRef shape) {
  const auto bytes = read_file(fixture_path(name));
  auto out = at::empty(shape, at::kFloat);
  EXPECT_EQ(bytes.size(), out.nbytes()) << name;
  std::copy(bytes.begin(), bytes.end(), static_cast<char*>(out.mutable_data_ptr()));
  return out;
}
/// The first rows of the training or validation samples.
inline DataLoader<Batch> loader(int64_t samples, int64_t batch_size, const std::string& which = "x") {
  return make_loader(TensorDataset({{"x", fixture_tensor(which + ".bin", {64, 32}).narrow(0, 0, samples).clone()}}),
                     {.batch_size = batch_size});
}

inline double number(const MetricValue& value) {
  return std::visit(
      [](const auto& v) {
        if constexpr (std::same_as<std::remove_cvref_t<decltype(v)>, at::Tensor>)
          return v.template item<double>();
        else
          return static_cast<double>(v);
      },
      value);
}

/// Keeps what it is given.
class Rows : public Logger {
 public:
  using Row = std::pair<int64_t, std::map<std::string, double>>;

  explicit Rows(std::filesystem::path folder = {}) : folder_(std::move(folder)) {}
  void log_metrics(const Metrics& metrics, std::optional<int64_t> step) override {
    Row row{step.value_or(-1), {}};
    for (const auto& [name, value] : metrics) row.second[name] = number(value);
    rows.push_back(std::move(row));
  }
  void log_hyperparams(const StateDict&) override {}
  void save() override {}
  void finalize(const std::string&) override {}
  std::filesystem::path log_dir() const override { return folder_; }

  /// Of each row only what begins with one of these; rows without are left out.
  std::vector<Row> with(const std::vector<std::string>& beginnings) const {
    std::vector<Row> found;
    for (const auto& [step, metrics] : rows) {
      std::map<std::string, double> some;
      for (const auto& [name, value] : metrics)
        for (const auto& beginning : beginnings)
          if (name.starts_with(beginning)) some[name] = value;
      if (!some.empty()) found.emplace_back(step, std::move(some));
    }
    return found;
  }

  std::vector<Row> rows;

 private:
  std::filesystem::path folder_;
};

inline SchedulerConfig schedule_of(const Optimizer& optimizer, const Json& spec) {
  const auto& options = spec.at("options");
  EXPECT_EQ(spec.at("type"), "StepLR");
  return {.scheduler =
              optim::StepLR(optimizer, {.step_size = options.at("step_size"), .gamma = options.value("gamma", 0.1)}),
          .interval = spec.value("interval", "epoch"),
          .name = spec.value("name", "")};
}

/// Linear(32, 2), or with batch norm between two layers; the mean squared error against ones.
struct Net : TrainModule {
  explicit Net(bool norm = false, Json schedule_spec = {}) : schedule(std::move(schedule_spec)) {
    at::NoGradGuard no_grad;
    const auto weight = fixture_tensor("weight.bin", {2, 32}), bias = fixture_tensor("bias.bin", {2});
    if (!norm) {
      plain = register_module("layer", torch::nn::Linear(32, 2));
      plain->weight.copy_(weight);
      plain->bias.copy_(bias);
      return;
    }
    torch::nn::Linear first(32, 4), last(4, 2);
    first->weight.copy_(at::cat({weight, weight.flip(1)}));
    first->bias.zero_();
    last->weight.copy_(weight.narrow(1, 0, 4));
    last->bias.copy_(bias);
    normed = register_module("layer", torch::nn::Sequential(first, torch::nn::BatchNorm1d(4), last));
  }

  Tensor loss_of(const Batch& batch) {
    const auto y = plain ? plain(batch["x"]) : normed->forward(batch["x"]);
    return at::mse_loss(y, at::ones_like(y));
  }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    const auto loss = loss_of(batch);
    losses.push_back(loss.item<double>());
    batches.push_back(at.batch_idx);
    return loss;
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    const auto loss = loss_of(batch);
    log("val_loss", loss);
    return loss;
  }
  Optimizers configure_optimizers() override {
    optim::SGD sgd(parameters(), {.lr = lr, .momentum = momentum});
    if (schedule.is_null()) return sgd;
    return {sgd, schedule_of(sgd, schedule)};
  }

  torch::nn::Linear plain{nullptr};
  torch::nn::Sequential normed{nullptr};
  Json schedule;
  double lr = 0.1;
  double momentum = 0;
  std::vector<double> losses;
  std::vector<int64_t> batches;
};

/// Nothing on the screen, no files but those asked for.
inline TrainerOptions quiet(std::vector<CallbackRef> callbacks, int64_t max_epochs,
                            const std::filesystem::path& root = {}) {
  TrainerOptions options;
  options.accelerator = "cpu";
  options.devices = 1;
  options.logger = false;
  options.callbacks = std::move(callbacks);
  options.max_epochs = max_epochs;
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.default_root_dir = root;
  return options;
}

inline void flatten(const Json& value, std::vector<double>& out) {
  if (value.is_array())
    for (const auto& each : value) flatten(each, out);
  else
    out.push_back(value.get<double>());
}

inline void expect_near(const Tensor& actual, const Json& expected, const std::string& where, double tolerance = 2e-6) {
  std::vector<double> values;
  flatten(expected, values);
  const auto flat = actual.detach().to(at::kDouble).flatten().contiguous();
  ASSERT_EQ(static_cast<size_t>(flat.numel()), values.size()) << where;
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_NEAR(flat.const_data_ptr<double>()[i], values[i], tolerance) << where << " element " << i;
}

inline std::map<std::string, Tensor> weights_of(const torch::nn::Module& module) {
  std::map<std::string, Tensor> weights;
  for (const auto& item : module.named_parameters()) weights[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) weights[item.key()] = item.value().detach().clone();
  return weights;
}

inline void expect_weights(const torch::nn::Module& module, const Json& expected, const std::string& where,
                           const std::vector<std::string>& but = {}) {
  const auto weights = weights_of(module);
  for (const auto& [name, value] : expected.items()) {
    if (std::ranges::find(but, name) != but.end()) continue;
    ASSERT_TRUE(weights.contains(name)) << where << " " << name;
    expect_near(weights.at(name), value, where + " " + name);
  }
}

inline void expect_equal(const torch::nn::Module& a, const torch::nn::Module& b, const std::string& where) {
  const auto left = weights_of(a), right = weights_of(b);
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left) EXPECT_TRUE(at::equal(tensor, right.at(name))) << where << " " << name;
}

/// Writes a checkpoint when that many batches are done, and one at the end of an epoch when asked.
struct SaveAt : Callback {
  SaveAt(std::filesystem::path where, int64_t batches, std::optional<int64_t> end_of_epoch = {})
      : path(std::move(where)), after(batches), epoch(end_of_epoch) {}
  CallbackOrder order() const override { return CallbackOrder::kCheckpoint; }
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) override {
    if (run.progress().total_batches + 1 == after) run.save_checkpoint(path);
  }
  void on_train_epoch_end(TrainerContext& run) override {
    if (epoch && run.current_epoch() == *epoch) run.save_checkpoint(path);
  }
  std::filesystem::path path;
  int64_t after;
  std::optional<int64_t> epoch;
};

}  // namespace levin::tuning_test
