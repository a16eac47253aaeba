// `compile` where there is nothing to compile on: the numbers of every other run, and a line that says so.
#include <gtest/gtest.h>

#include "boring.h"
#include "levin/levin.h"
#include "levin/testing/capture.h"

namespace levin {
namespace {

TrainerOptions options(bool compile) {
  return {.accelerator = "cpu",
          .devices = 1,
          .logger = false,
          .max_epochs = 2,
          .enable_checkpointing = false,
          .enable_progress_bar = false,
          .enable_model_summary = false,
          .compile = compile};
}

TEST(TrainerCompile, ChangesNothingOnTheCpu) {
  const auto weights = [](bool compile) {
    torch::manual_seed(1);
    trainer_test::Boring module;
    Trainer trainer(options(compile));
    trainer.fit(module, trainer_test::boring_loader(16, 4), trainer_test::boring_loader(8, 4));
    return module.layer->weight.detach().clone();
  };
  Tensor compiled;
  const auto lines = testing::captured_stderr([&] { compiled = weights(true); });
  EXPECT_TRUE(torch::equal(weights(false), compiled));
  const std::string line = "[compile] steps are not captured on cpu: CUDA graphs need a GPU";
  const auto found = lines.find(line);
  EXPECT_NE(found, std::string::npos) << lines;
  EXPECT_EQ(lines.find(line, found + 1), std::string::npos) << "once";
}

struct WithHook : trainer_test::Boring {
  void on_before_optimizer_step(Optimizer&) override {}
};
struct WithPrivateHook : trainer_test::Boring {
 private:
  void backward(const Tensor& loss) override { run_backward(loss); }
};

TEST(TrainerCompile, KnowsWhichHooksOfTheStepAModuleOverrides) {
  EXPECT_EQ(detail::overridden_in_step<trainer_test::Boring>(), "");
  EXPECT_EQ(detail::overridden_in_step<WithHook>(), "on_before_optimizer_step");
  EXPECT_EQ(detail::overridden_in_step<WithPrivateHook>(), "backward");
  WithHook module;
  EXPECT_NE(static_cast<TrainModuleBase&>(module).overridden_in_step(), "") << "nobody has looked";
  detail::module_of(static_cast<trainer_test::Boring&>(module));
  EXPECT_NE(module.overridden_in_step(), "") << "only a base was seen";
  detail::module_of(module);
  EXPECT_EQ(module.overridden_in_step(), "on_before_optimizer_step");
}

TEST(TrainerCompile, KnowsWhichFunctionsALambdaCallbackHas) {
  const LambdaCallback callback({.on_after_backward = [](TrainerContext&) {}});
  EXPECT_TRUE(callback.hears(Hook::on_after_backward));
  EXPECT_FALSE(callback.hears(Hook::on_before_backward));
}

}  // namespace
}  // namespace levin
