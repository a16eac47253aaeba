// What log() makes of its values over an epoch, beside torch's reductions.
#include "levin/trainer/metric_log.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/fabric/fabric.h"
#include "levin/testing/error_of.h"

namespace levin::detail {
namespace {

using levin::testing::error_of;
using ::testing::HasSubstr;

class MetricLogTest : public ::testing::Test {
 protected:
  void log(const LoggedValue& value, const LogOptions& options) {
    metrics.log({.site = &site, .fabric = &fabric}, "m", value, options);
  }
  double epoch_value() {
    MetricLog::Published published;
    metrics.publish_epoch(published, fabric);
    return metric_number(published.callback.at("m"));
  }
  /// As if the values so far had been those of a GPU.
  void resume_from_gpu() {
    auto state = metrics.state_dict();
    auto entry = state.at("entries").to_list().at(0).to_dict();
    entry["on_device"] = true;
    metrics.load_state_dict({{"entries", StateList{entry}}});
  }

  LogSite site{"training_step", LogSite::Kind::kTrainStep};
  Fabric fabric{{.accelerator = "cpu", .devices = 1}};
  MetricLog metrics{/*training=*/true};
};

TEST_F(MetricLogTest, MinAndMaxKeepNan) {
  for (const char* reduce : {"min", "max"})
    for (const auto& values : std::vector<std::vector<double>>{{1, NAN, 2}, {NAN, 1}, {1, NAN}}) {
      metrics.clear();
      for (const double value : values) log(value, {.on_step = false, .on_epoch = true, .reduce_fx = reduce});
      EXPECT_TRUE(std::isnan(epoch_value())) << reduce;
    }
  metrics.clear();
  for (const double value : {2.0, 1.0, 3.0}) log(value, {.on_step = false, .on_epoch = true, .reduce_fx = "min"});
  EXPECT_EQ(epoch_value(), 1);
  metrics.clear();
  for (const double value : {2.0, 3.0, 1.0}) log(value, {.on_step = false, .on_epoch = true, .reduce_fx = "max"});
  EXPECT_EQ(epoch_value(), 3);
}

TEST_F(MetricLogTest, OneNameHasOneReduction) {
  log(1.0, {.on_epoch = true, .reduce_fx = "max"});
  log(1.0, {.on_epoch = true, .reduce_fx = "MAX"});
  EXPECT_THAT(error_of([&] { log(1.0, {.on_epoch = true, .reduce_fx = "min"}); }),
              HasSubstr("\"m\" was logged before in training_step with other options"));
  EXPECT_THAT(error_of([&] { log(1.0, {.on_epoch = true}); }), HasSubstr("with other options"));
  metrics.clear();
  log(1.0, {.on_epoch = true, .reduce_fx = "avg"});
  EXPECT_NO_THROW(log(1.0, {.on_epoch = true, .reduce_fx = "mean"}));
  EXPECT_THAT(error_of([&] { log(1.0, {.on_epoch = true, .reduce_fx = "mena"}); }),
              HasSubstr("did you mean \"mean\"?"));
}

TEST_F(MetricLogTest, RankZeroOnlyAlsoWithSyncDist) {
  const LogOptions options{.on_epoch = true, .sync_dist = true, .rank_zero_only = true};
  EXPECT_NO_THROW(log(1.0, options));
  EXPECT_NO_THROW(log(2.0, options));
}

TEST_F(MetricLogTest, ValuesOfTheHostJoinThoseOfTheDevice) {
  const std::map<std::string, double> expected{{"mean", 2}, {"sum", 6}, {"min", 1}, {"max", 3}};
  for (const auto& [reduce, value] : expected) {
    metrics.clear();
    const LogOptions options{.on_step = false, .on_epoch = true, .reduce_fx = reduce};
    log(2.0, options);
    resume_from_gpu();
    log(1.0, options);
    log(3.0, options);
    EXPECT_EQ(epoch_value(), value) << reduce;
  }
  metrics.clear();
  log(1.0, {.on_step = false, .on_epoch = true});
  EXPECT_NO_THROW(log(at::zeros({}, at::kMeta), {.on_step = false, .on_epoch = true}));
}

}  // namespace
}  // namespace levin::detail
