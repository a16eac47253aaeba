// ThroughputMonitor, with a clock of its own, and DeviceStatsMonitor.
#include "levin/trainer/callbacks/device_stats_monitor.h"
#include "levin/trainer/callbacks/throughput_monitor.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

/// Every training batch takes a second, every validation batch ten.
struct Slow : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    now += 1;
    return Net::training_step(batch, at);
  }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    now += 10;
    return loss_of(batch);
  }
  StepOutput test_step(const Batch& batch, const StepInfo& at) override { return validation_step(batch, at); }
  StepOutput predict_step(const Batch& batch, const StepInfo& at) override { return validation_step(batch, at); }
  double now = 100;
};

struct Measured {
  explicit Measured(ThroughputMonitorOptions options, int64_t epochs = 1, int64_t accumulate = 1) {
    options.clock = [this] { return net.now; };
    auto asked = quiet({ThroughputMonitor(options)}, epochs);
    asked.logger = rows;
    asked.log_every_n_steps = 2;
    asked.accumulate_grad_batches = accumulate;
    asked.num_sanity_val_steps = 0;
    trainer.emplace(asked);
  }
  Slow net;
  std::shared_ptr<Rows> rows = std::make_shared<Rows>();
  std::optional<Trainer> trainer;
};

using Row = std::map<std::string, double>;

TEST(ThroughputMonitor, MeasuresRates) {
  Measured run({.length_fn = [](const AnyBatch& batch) { return batch.get<Batch>()["x"].numel(); },
                .flops_per_batch = 1000,
                .available_flops = 4000});
  run.trainer->fit(run.net, loader(32, 4), loader(8, 4, "x_val"));
  const auto found = run.rows->with({"train/"});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].first, 1);
  EXPECT_EQ(found[3].first, 7);
  EXPECT_EQ(found[3].second, (Row{{"train/time", 8},
                                  {"train/batches", 8},
                                  {"train/samples", 32},
                                  {"train/lengths", 1024},
                                  {"train/device/batches_per_sec", 1},
                                  {"train/device/samples_per_sec", 4},
                                  {"train/device/items_per_sec", 128},
                                  {"train/device/flops_per_sec", 1000},
                                  {"train/device/mfu", 0.25}}));
  const auto validated = run.rows->with({"validate/"});
  ASSERT_EQ(validated.size(), 1u);
  EXPECT_EQ(validated[0].second, (Row{{"validate/time", 20},
                                      {"validate/batches", 2},
                                      {"validate/samples", 8},
                                      {"validate/lengths", 256},
                                      {"validate/device/batches_per_sec", 0.1},
                                      {"validate/device/samples_per_sec", 0.4},
                                      {"validate/device/items_per_sec", 12.8}}));
}

// Keys and counts are Lightning's. It waits for a full window before it gives rates; here they begin with the second
// row.
TEST(ThroughputMonitor, CountsAsLightning) {
  for (const auto& expected : cases_of("throughput.json")) {
    const std::string name = expected.at("name");
    ThroughputMonitorOptions options{.window_size = expected.at("window_size")};
    if (!expected.at("length").is_null())
      options.length_fn = [](const AnyBatch& batch) { return batch.get<Batch>()["x"].numel(); };
    options.flops_per_batch =
        expected.at("flops_per_batch").is_null() ? 0.0 : expected.at("flops_per_batch").get<double>();
    Measured run(options);
    run.trainer->fit(run.net, loader(32, 4), loader(8, 4, "x_val"));
    const auto found = run.rows->with({"train/"});
    size_t i = 0;
    for (const auto& row : expected.at("rows")) {
      if (!row.at("counts").contains("train/batches")) continue;
      ASSERT_LT(i, found.size()) << name;
      EXPECT_EQ(found[i].first, row.at("step")) << name;
      for (const auto& [key, value] : row.at("counts").items())
        EXPECT_EQ(found[i].second.at(key), value) << name << " " << key;
      for (const auto& key : row.at("keys"))
        EXPECT_TRUE(key == "epoch" || found[i].second.contains(key)) << name << " " << key;
      ++i;
    }
    EXPECT_EQ(i, found.size()) << name;
  }
}

TEST(ThroughputMonitor, TakesTheNewestWindowAndNoValidation) {
  Measured run({.window_size = 4, .flops_per_batch = 0}, 2);
  run.trainer->fit(run.net, loader(32, 4), loader(8, 4, "x_val"));
  const auto found = run.rows->with({"train/"});
  ASSERT_EQ(found.size(), 8u);
  // Two validations of 20 s lie between the epochs and after them.
  for (size_t i = 1; i < found.size(); ++i)
    EXPECT_EQ(found[i].second.at("train/device/batches_per_sec"), 1) << found[i].first;
  EXPECT_EQ(found.back().second.at("train/time"), 16);
}

TEST(ThroughputMonitor, HasOneRowForAStepOfSeveralBatches) {
  Measured run({.flops_per_batch = 0}, 1, /*accumulate=*/2);
  run.trainer->fit(run.net, loader(32, 4));
  const auto found = run.rows->with({"train/batches"});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].second.at("train/batches"), 4);
  EXPECT_EQ(found[1].second.at("train/batches"), 8);
}

TEST(ThroughputMonitor, CountsOperationsAutomatically) {
  Measured run({});
  run.trainer->fit(run.net, loader(32, 4));
  // Forward, and the gradient of the weight.
  EXPECT_EQ(run.rows->with({"train/device/flops"}).back().second.at("train/device/flops_per_sec"),
            2.0 * 2 * 4 * 32 * 2);
}

TEST(ThroughputMonitor, MeasuresTestAndPredict) {
  Measured run({});
  run.trainer->test(run.net, loader(16, 4), {.verbose = false});
  run.trainer->predict(run.net, loader(16, 4));
  EXPECT_EQ(run.rows->with({"test/device/batches"}).at(0).second.at("test/device/batches_per_sec"), 0.1);
  EXPECT_EQ(run.rows->with({"predict/samples"}).at(0).second.at("predict/samples"), 16);
}

TEST(ThroughputMonitor, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { ThroughputMonitor({.window_size = 1}); }), HasSubstr("window_size=1"));
  Net net;
  EXPECT_THAT(error_of([&] { Trainer(quiet({ThroughputMonitor()}, 1)).fit(net, loader(8, 4)); }),
              HasSubstr("no logger"));
}

TEST(DeviceStatsMonitor, LogsAroundTheBatchesThatHaveARow) {
  const auto rows_with = [](std::optional<bool> cpu_stats) {
    const auto rows = std::make_shared<Rows>();
    auto options = quiet({DeviceStatsMonitor({.cpu_stats = cpu_stats})}, 1);
    options.logger = rows;
    options.log_every_n_steps = 3;
    Net net;
    Trainer(options).fit(net, loader(28, 4));
    return rows->with({"DeviceStatsMonitor."});
  };
  const auto found = rows_with({});
  ASSERT_EQ(found.size(), 4u);  // two of seven batches, before and after
  EXPECT_EQ(found[0].first, 2);
  EXPECT_EQ(found[3].first, 5);
  const auto& before = found[0].second;
  EXPECT_GT(before.at("DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.current"), 1e6);
  EXPECT_GE(before.at("DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.peak"),
            before.at("DeviceStatsMonitor.on_train_batch_start/allocated_bytes.all.current"));
  EXPECT_GT(found[1].second.at("DeviceStatsMonitor.on_train_batch_end/cpu_vm_percent"), 0);
  EXPECT_TRUE(rows_with(false).empty());

  Net net;
  EXPECT_THAT(error_of([&] { Trainer(quiet({DeviceStatsMonitor()}, 1)).fit(net, loader(8, 4)); }),
              HasSubstr("no logger"));
}

}  // namespace
}  // namespace levin::tuning_test
