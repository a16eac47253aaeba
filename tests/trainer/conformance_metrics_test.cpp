// metrics.csv, weights and learning rates of whole runs: fixtures/metrics_*.csv, metrics.json and schedulers.json.
#include <cmath>
#include <sstream>

#include "levin/loggers/csv.h"
#include "levin/trainer/callbacks/lr_monitor.h"
#include "tests/trainer/conformance.h"

namespace levin::conformance {
namespace {

using Table = std::vector<std::vector<std::string>>;

Table table_in(const std::filesystem::path& path) {
  Table rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with('\r')) line.pop_back();
    auto& cells = rows.emplace_back();
    std::stringstream stream(line + ",");
    for (std::string cell; std::getline(stream, cell, ',');) cells.push_back(cell);
  }
  return rows;
}

void run_case(const std::string& name) {
  const auto& test = fixture("metrics.json")["runs"][name];
  const Folder folder;
  const auto watch = std::make_shared<Watch>();
  const auto logger = std::make_shared<CsvLogger>(folder.path());
  auto options = options_of(test["trainer"]);
  options.logger = logger;
  options.default_root_dir = folder.path();
  options.callbacks = {watch};
  for (const auto& callback : test.value("callbacks", Json::array())) {
    ASSERT_EQ(callback["type"], "LearningRateMonitor");
    options.callbacks.push_back(LearningRateMonitor({.logging_interval = callback.value("logging_interval", "")}));
  }
  Net net(test["model"]);
  const auto& data = test["data"];
  const int64_t batch_size = data["batch_size"];
  std::vector<DataLoader<Batch>> val;
  for (const auto& samples : data["val"]) val.push_back(loader_of(samples, batch_size, "x_val"));
  auto quiet = std::make_unique<Quiet>();
  Trainer trainer(std::move(options));
  trainer.fit(net, loader_of(data["train"], batch_size), val);
  quiet.reset();

  expect_weights(net, test["final"]);
  EXPECT_EQ(trainer.global_step(), test["global_step"]);
  EXPECT_EQ(trainer.current_epoch(), test["current_epoch"]);
  expect_metrics(watch->callback_metrics, test["callback_metrics"]);
  expect_metrics(watch->logged_metrics, test["logged_metrics"]);

  const auto written = table_in(logger->log_dir() / "metrics.csv");
  const auto expected = table_in(fixture_path(name + ".csv"));
  ASSERT_FALSE(written.empty());
  EXPECT_EQ(written[0], expected[0]);
  ASSERT_EQ(written.size(), expected.size());
  for (size_t row = 1; row < written.size(); ++row) {
    ASSERT_EQ(written[row].size(), expected[row].size()) << "row " << row;
    for (size_t column = 0; column < written[row].size(); ++column) {
      SCOPED_TRACE(detail::concat("row ", row, ", ", expected[0][column]));
      const auto &a = written[row][column], &b = expected[row][column];
      if (a.empty() || b.empty())
        EXPECT_EQ(a, b);
      else
        EXPECT_TRUE(near(std::stod(a), std::stod(b)));
    }
  }
}

TEST(ConformanceMetrics, AccumulationAndSchedule) {
  run_case("metrics_a");
}
TEST(ConformanceMetrics, SeveralLoadersAndReductions) {
  run_case("metrics_b");
}
TEST(ConformanceMetrics, ClippingAndMomentum) {
  run_case("metrics_c");
}

struct Rates : Callback {
  static double lr(TrainerContext& run) { return run.optimizers()[0].lr(); }
  void on_train_epoch_start(TrainerContext& run) override { at_epoch_start.push_back(lr(run)); }
  void on_train_batch_start(TrainerContext& run, const AnyBatch&, int64_t) override {
    at_batch_start.push_back(lr(run));
  }
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) override {
    at_batch_end.push_back(lr(run));
  }
  void on_train_epoch_end(TrainerContext& run) override { at_epoch_end.push_back(lr(run)); }
  void teardown(TrainerContext& run, std::string_view) override {
    if (!run.optimizers().empty()) last = lr(run);
  }

  std::vector<double> at_epoch_start, at_batch_start, at_batch_end, at_epoch_end;
  double last = 0;
};

void expect_rates(const char* where, const std::vector<double>& rates, const Json& expected) {
  SCOPED_TRACE(where);
  ASSERT_EQ(rates.size(), expected.size());
  for (size_t i = 0; i < rates.size(); ++i) EXPECT_TRUE(near(rates[i], expected[i])) << i;
}

TEST(ConformanceMetrics, Schedulers) {
  ASSERT_GE(fixture("schedulers.json")["cases"].size(), 17u);
  for (const auto& test : fixture("schedulers.json")["cases"]) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const auto& expect = test["expect"];
    const auto rates = std::make_shared<Rates>();
    std::string error;
    Net net(test["model"]);
    try {
      const Quiet quiet;
      auto options = options_of(test["trainer"]);
      options.logger = false;
      options.callbacks = {rates};
      Trainer(std::move(options)).fit(net, loader_of(64), loader_of(64, 1, "x_val"));
    } catch (const Error& e) {
      error = e.what();
    }
    EXPECT_EQ(!error.empty(), expect.contains("error")) << error;
    if (!error.empty() || expect.contains("error")) continue;
    expect_rates("at the start of epochs", rates->at_epoch_start, expect["lr_at_epoch_start"]);
    expect_rates("at the start of batches", rates->at_batch_start, expect["lr_at_batch_start"]);
    expect_rates("at the end of batches", rates->at_batch_end, expect["lr_at_batch_end"]);
    expect_rates("at the end of epochs", rates->at_epoch_end, expect["lr_at_epoch_end"]);
    EXPECT_TRUE(near(rates->last, expect["lr_final"]));
  }
}

}  // namespace
}  // namespace levin::conformance
