// Where in a run an error happened: in the line of torch's and Levin's, beside those of other types.
#include <functional>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "levin/nn/unit.h"
#include "levin/testing/capture.h"
#include "levin/trainer/callbacks/tuning/batch_size_finder.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

struct WideImpl : torch::nn::Module {
  WideImpl() : linear(register_module("linear", torch::nn::Linear(31, 2))) {}
  Tensor forward(Tensor x) {  // consumes its argument, as most do
    x = x * 2;
    return linear(x);
  }
  torch::nn::Linear linear;
};
LEVIN_MODULE(Wide);

struct OuterImpl : torch::nn::Module {
  OuterImpl() : wide(register_module("wide", Wide())) {}
  Tensor forward(const Tensor& x) { return wide(x.clone()); }
  Wide wide;
};
LEVIN_MODULE(Outer);

struct Faulty : TrainModule {
  Faulty() : outer(register_module("outer", Outer())), head(register_module("head", torch::nn::Linear(32, 2))) {}
  StepOutput training_step(const Batch& batch, const StepInfo& at) override {
    if (at.batch_idx == 1 && in_step) in_step(batch);
    const auto y = head(batch["x"]);
    return at::mse_loss(y, at::ones_like(y));
  }
  StepOutput validation_step(const Batch& batch, const StepInfo& at) override {
    if (at.batch_idx == 1 && in_validation) in_validation(batch);
    return {};
  }
  void on_before_optimizer_step(Optimizer&) override {
    if (in_hook) in_hook();
  }
  Optimizers configure_optimizers() override { return optim::SGD(parameters(), {.lr = 0.1}); }

  Outer outer;
  torch::nn::Linear head;
  std::function<void(const Batch&)> in_step, in_validation;
  std::function<void()> in_hook;
};

struct Caught {
  std::string type, line, log;
};

Caught fit(Faulty& net, std::vector<CallbackRef> callbacks = {}) {
  Caught caught;
  caught.log = testing::captured_stderr([&] {
    try {
      auto options = quiet(std::move(callbacks), 2);
      options.num_sanity_val_steps = 0;
      Trainer(options).fit(net, loader(8, 2), loader(8, 2, "x_val"));
    } catch (const std::exception& error) {
      caught.type = c10::demangle(typeid(error).name());
      caught.line = error.what();
    }
  });
  return caught;
}

TEST(ErrorPlace, ATorchErrorSaysStageEpochBatchUnitAndShapes) {
  Faulty net;
  net.in_step = [&](const Batch& batch) { net.outer(batch["x"]); };
  const auto caught = fit(net);
  EXPECT_EQ(caught.type, "levin::Error");
  EXPECT_THAT(caught.line,
              ::testing::StartsWith("[trainer.fit] training_step, epoch 0, batch 1, unit outer.wide (Wide), "
                                    "input float32 [2, 32]: "));
  EXPECT_THAT(caught.line, HasSubstr("shapes cannot be multiplied (2x32 and 31x2)"));
  EXPECT_THAT(caught.line, ::testing::Not(HasSubstr("\n")));
  EXPECT_THAT(caught.line, ::testing::Not(HasSubstr("Exception raised from")));
}

TEST(ErrorPlace, WithoutAUnitTheBatchIsShown) {
  Faulty net;
  net.in_validation = [&](const Batch& batch) { at::mm(batch["x"], batch["x"]); };
  const auto caught = fit(net);
  EXPECT_THAT(caught.line,
              ::testing::StartsWith("[trainer.fit] validation_step, epoch 0, batch 1, batch float32 [2, 32]: "));
}

TEST(ErrorPlace, BackwardIsAPlaceOfItsOwn) {
  struct Fails : Faulty {
    void backward(const Tensor&) override { TORCH_CHECK(false, "no gradient today"); }
  };
  Fails net;
  EXPECT_THAT(fit(net).line, ::testing::StartsWith("[trainer.fit] backward, epoch 0, batch 0"));
}

struct Throws : Callback {
  void on_train_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, int64_t batch_idx) override {
    if (batch_idx == 2) what();
  }
  std::function<void()> what;
};

TEST(ErrorPlace, ACallbackIsNamedWithItsHook) {
  Faulty net;
  auto callback = std::make_shared<Throws>();
  callback->what = [] { at::mm(at::ones({2, 2}), at::ones({3, 3})); };
  auto caught = fit(net, {callback});
  EXPECT_THAT(caught.line, HasSubstr("Throws.on_train_batch_end, epoch 0, batch 2"));
  EXPECT_THAT(caught.line, HasSubstr("cannot be multiplied"));
  callback->what = [] { throw Error("[mine] not today"); };
  caught = fit(net, {callback});
  EXPECT_EQ(caught.type, "levin::Error");
  EXPECT_THAT(caught.line, ::testing::StartsWith("[mine] not today ("));
  EXPECT_THAT(caught.line, HasSubstr("Throws.on_train_batch_end, epoch 0, batch 2)"));
}

struct MyError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct MyLevinError : Error {
  using Error::Error;
};

TEST(ErrorPlace, TheUsersTypesStayAndTheLogSaysWhere) {
  Faulty net;
  net.in_step = [](const Batch&) { throw MyError("mine"); };
  auto caught = fit(net);
  EXPECT_THAT(caught.type, HasSubstr("MyError"));
  EXPECT_EQ(caught.line, "mine");
  EXPECT_THAT(caught.log, HasSubstr("MyError in training_step, epoch 0, batch 1: mine"));
  net.in_step = [](const Batch&) { throw MyLevinError("[mine] no"); };
  caught = fit(net);
  EXPECT_THAT(caught.type, HasSubstr("MyLevinError"));
  EXPECT_EQ(caught.line, "[mine] no");
}

TEST(ErrorPlace, WhatIsNoExceptionClassEndsTheRunInOrder) {
  Faulty net;
  net.in_hook = [] { throw 42; };
  Trainer trainer(quiet({}, 1));
  EXPECT_THROW(trainer.fit(net, loader(8, 2)), int);
  net.in_hook = {};
  trainer.fit(net, loader(8, 2));  // and the trainer is free again
  EXPECT_EQ(trainer.global_step(), 4);
}

TEST(ErrorPlace, OutOfMemoryKeepsItsType) {
  Faulty net;
  net.in_step = [&](const Batch&) { throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "CUDA out of memory"); };
  const auto caught = fit(net);
  EXPECT_EQ(caught.type, "c10::OutOfMemoryError");
  EXPECT_THAT(caught.line, HasSubstr("CUDA out of memory (trainer.fit: training_step, epoch 0, batch 1"));
  EXPECT_THAT(caught.line, ::testing::Not(HasSubstr("\n")));
}

struct Oom : Callback {
  void on_exception(TrainerContext&, const std::exception& error) override {
    told = levin::detail::is_out_of_memory(error);
  }
  bool told = false;
};

TEST(ErrorPlace, OnExceptionSeesWhatComesOut) {
  Faulty net;
  net.in_step = [&](const Batch&) { throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "CUDA out of memory"); };
  const auto callback = std::make_shared<Oom>();
  fit(net, {callback});
  EXPECT_TRUE(callback->told);
}

TEST(ErrorPlace, OfTheSetUpIsAsBefore) {
  struct Refuses : Faulty {
    Optimizers configure_optimizers() override { levin::detail::fail("[mine] no optimizer"); }
  };
  Refuses net;
  EXPECT_EQ(fit(net).line, "[mine] no optimizer");
}

}  // namespace
}  // namespace levin::tuning_test
