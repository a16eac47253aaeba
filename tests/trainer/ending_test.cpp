// Ends that used to be SIGSEGV: ranks that cannot be joined, a Trainer that is destroyed while it is at work.
#include <thread>

#include "levin/testing/capture.h"
#include "levin/testing/scoped_variable.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

using testing::ScopedVariable;

TEST(Ending, RanksThatCannotBeJoinedAreAnErrorOfEveryJob) {
  const ScopedVariable world("WORLD_SIZE", "2"), rank("RANK", "0"), local("LOCAL_RANK", "0"),
      address("MASTER_ADDR", "127.0.0.1"), port("MASTER_PORT", "29500");
  Net net;
  Trainer trainer(quiet({}, 1));
  const auto is_said = HasSubstr("WORLD_SIZE=2, but devices x num_nodes = 1 x 1");
  EXPECT_THAT(error_of([&] { trainer.fit(net, loader(8, 4)); }), is_said);
  EXPECT_THAT(error_of([&] { trainer.validate(net, loader(8, 4)); }), is_said);
  EXPECT_THAT(error_of([&] { trainer.predict(net, loader(8, 4)); }), is_said);
  EXPECT_FALSE(net.has_trainer());
}

TEST(Ending, ATrainerThatCouldNotJoinCanBeUsedAgain) {
  Net net;
  Trainer trainer(quiet({}, 1));
  {
    const ScopedVariable world("WORLD_SIZE", "2"), rank("RANK", "0"), local("LOCAL_RANK", "0"),
        address("MASTER_ADDR", "127.0.0.1"), port("MASTER_PORT", "29500");
    EXPECT_THAT(error_of([&] { trainer.fit(net, loader(8, 4)); }), HasSubstr("WORLD_SIZE=2"));
  }
  trainer.fit(net, loader(8, 4));
  EXPECT_EQ(trainer.global_step(), 2);
}

/// Calls the test at each step.
struct Watched : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    auto out = Net::training_step(batch, at);
    ++steps;
    if (in_step) in_step();
    return out;
  }
  std::atomic<int> steps = 0;
  std::function<void()> in_step;
};

TEST(Ending, ATrainerMayBeDestroyedInItsOwnStep) {
  Watched net;
  auto trainer = std::make_unique<Trainer>(quiet({}, 1000));
  net.in_step = [&] {
    if (net.steps == 3) trainer.reset();
  };
  auto& running = *trainer;
  const auto text = testing::captured_stderr([&] { running.fit(net, loader(16, 4)); });
  EXPECT_EQ(net.steps, 3);
  EXPECT_FALSE(net.has_trainer());
  EXPECT_THAT(text, HasSubstr("the Trainer was destroyed during its fit (epoch 0, batch 3)"));
}

TEST(Ending, ATrainerMayBeDestroyedByAnotherThread) {
  Watched net;
  auto trainer = std::make_unique<Trainer>(quiet({}, 1000000));
  const auto text = testing::captured_stderr([&] {
    std::thread fitting([&net, &running = *trainer] { running.fit(net, loader(16, 4)); });
    while (net.steps < 3) std::this_thread::yield();
    trainer.reset();
    fitting.join();
  });
  EXPECT_GE(net.steps, 3);
  EXPECT_THAT(text, HasSubstr("the Trainer was destroyed during its fit"));
}

TEST(Ending, ATrainerMayBeDestroyedDuringValidation) {
  struct Validated : Net {
    StepOutput validation_step(const Batch& batch, const StepInfo& at) override {
      auto out = Net::validation_step(batch, at);
      if (steps++ == 0) trainer.reset();
      return out;
    }
    int steps = 0;
    std::unique_ptr<Trainer> trainer = std::make_unique<Trainer>(quiet({}, 1));
  } net;
  auto& running = *net.trainer;
  const auto text = testing::captured_stderr([&] { running.validate(net, loader(16, 4)); });
  EXPECT_EQ(net.steps, 4);  // a validation is short: it runs to its end
  EXPECT_THAT(text, HasSubstr("the Trainer was destroyed"));
}

/// A scheduler whose step throws.
struct Unschedulable : Net {
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    auto out = Net::training_step(batch, at);
    log("m", 1.0);
    return out;
  }
  Optimizers configure_optimizers() override {
    const optim::SGD sgd(parameters(), {.lr = 0.1});
    return {sgd, {.scheduler = optim::ReduceLROnPlateau(sgd, {}), .interval = "step", .monitor = "m"}};
  }
  void lr_scheduler_step(Scheduler&, std::optional<double>) override { throw Error("[test] no step"); }
};

TEST(Ending, ASchedulerThatThrowsLeavesTheCountOfBatches) {
  Unschedulable net;
  Trainer trainer(quiet({}, 1));
  EXPECT_THAT(error_of([&] { trainer.fit(net, loader(16, 4)); }), HasSubstr("[test] no step"));
  EXPECT_EQ(trainer.progress().batch, 1);
  EXPECT_EQ(trainer.global_step(), 1);
}

}  // namespace
}  // namespace levin::tuning_test
