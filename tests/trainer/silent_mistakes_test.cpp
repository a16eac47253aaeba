// What used to pass without a word: a log outside of a run, a loss that is not finite, steps without a loss.
#include <limits>
#include <thread>

#include "levin/testing/capture.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

struct Logs : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    log("my_loss", 1.0);
    return Net::training_step(batch, at);
  }
};

TEST(SilentMistakes, ALogOutsideOfARunIsSaid) {
  Logs net;
  const Batch batch{{"x", at::zeros({1, 32})}};
  const auto text = testing::captured_stderr([&] {
    net.training_step(batch, {});
    net.training_step(batch, {});
    net.log("of_a_tensor", at::ones({}));
  });
  EXPECT_EQ(count_of(text, "\"my_loss\" goes nowhere"), 1u) << text;
  EXPECT_THAT(text, HasSubstr("\"of_a_tensor\" goes nowhere"));
  EXPECT_THAT(text, HasSubstr("trainer.fit"));
}

TrainerOptions that_warns(int64_t epochs) {
  auto o = quiet({}, epochs);
  o.on_nonfinite = "warn";
  return o;
}

/// A loss of the test's choice at one batch.
struct Bad : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    auto out = Net::training_step(batch, at);
    if (current_epoch() == 1 && at.batch_idx >= 2) out.loss = out.loss * value;
    return out;
  }
  double value = std::numeric_limits<double>::quiet_NaN();
};

TEST(SilentMistakes, ALossThatIsNotFiniteIsSaidOnceWithItsPlace) {
  for (const double value : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Bad net;
    net.value = value;
    const auto text = testing::captured_stderr([&] { Trainer(that_warns(3)).fit(net, loader(16, 4)); });
    EXPECT_EQ(count_of(text, "the loss is nan or inf"), 1u) << text;
    EXPECT_THAT(text, HasSubstr("epoch 1, batch 2"));
    EXPECT_THAT(text, HasSubstr("detect_anomaly"));
  }
}

TEST(SilentMistakes, EveryFitWarnsAgain) {
  Bad net;
  net.value = std::numeric_limits<double>::infinity();
  Trainer trainer(that_warns(2));
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(count_of(testing::captured_stderr([&] { trainer.fit(net, loader(16, 4)); }), "the loss is nan or inf"),
              1u);
}

TEST(SilentMistakes, AFiniteLossSaysNothing) {
  Net net;
  EXPECT_EQ(count_of(testing::captured_stderr([&] { Trainer(quiet({}, 2)).fit(net, loader(16, 4)); }), "nan"), 0u);
}

struct NoLoss : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (current_epoch() >= from && !(sometimes && at.batch_idx == 0)) return {};
    return Net::training_step(batch, at);
  }
  int64_t from = 0;
  bool sometimes = false;
};

TEST(SilentMistakes, AnEpochWithoutALossIsSaidOnce) {
  NoLoss net;
  net.from = 1;
  const auto text = testing::captured_stderr([&] { Trainer(quiet({}, 3)).fit(net, loader(16, 4)); });
  EXPECT_EQ(count_of(text, "returned no loss"), 1u) << text;
  EXPECT_THAT(text, HasSubstr("4 batches of epoch 1"));
}

TEST(SilentMistakes, SomeBatchesWithoutALossAreAllowed) {
  NoLoss net;
  net.sometimes = true;
  EXPECT_EQ(
      count_of(testing::captured_stderr([&] { Trainer(quiet({}, 1)).fit(net, loader(16, 4)); }), "returned no loss"),
      0u);
}

struct Manual : Net {
  Manual() { automatic_optimization = false; }
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    const auto out = Net::training_step(batch, at);
    optimizer().zero_grad();
    manual_backward(out.loss);
    optimizer().step();
    return {};
  }
};

TEST(SilentMistakes, ManualOptimizationReturnsWhatItLikes) {
  Manual net;
  EXPECT_EQ(
      count_of(testing::captured_stderr([&] { Trainer(quiet({}, 1)).fit(net, loader(16, 4)); }), "returned no loss"),
      0u);
}

/// Runs another fit in the middle of its own, in another thread or in this one.
struct Nests : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    const auto other = [] {
      Net net;
      Trainer(quiet({}, 1)).fit(net, loader(4, 4));
    };
    if (at.batch_idx == 0 && in_thread) std::thread(other).join();
    if (at.batch_idx == 0 && !in_thread) other();
    return Net::training_step(batch, at);
  }
  bool in_thread = false;
};

TEST(SilentMistakes, TwoFitsAtOnceInOneProcessAreSaid) {
  for (const bool in_thread : {true, false}) {
    Nests net;
    net.in_thread = in_thread;
    const auto text = testing::captured_stderr([&] { Trainer(quiet({}, 1)).fit(net, loader(8, 4)); });
    EXPECT_EQ(count_of(text, "another fit is under way in this process"), in_thread ? 1u : 0u) << text;
  }
  Net net;
  EXPECT_EQ(count_of(testing::captured_stderr([&] { Trainer(quiet({}, 1)).fit(net, loader(8, 4)); }), "another fit"),
            0u);
}

}  // namespace
}  // namespace levin::tuning_test
