// A resume that is refused leaves the module, the callbacks, the data and the random generators as they were; so does a
// trial that could not be undone.
#include <cstdlib>

#include "levin/checkpoint/checkpoint.h"
#include "levin/testing/capture.h"
#include "levin/testing/error_of.h"
#include "levin/testing/probe.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

namespace fs = std::filesystem;
using testing::error_of;

struct Counts : Callback {
  StateDict state_dict() const override { return {{"n", n}}; }
  void load_state_dict(const StateDict& state) override {
    n = state.at("n").to_int();
    if (refuses) throw Error("[counts] refused");
  }
  void on_train_batch_end(TrainerContext&, const StepOutput&, const AnyBatch&, int64_t) override { ++n; }
  int64_t n = 0;
  bool refuses = false;
};

struct Data : DataModule {
  Loaders<Batch> train_dataloader() override { return loader(16, 4); }
  StateDict state_dict() const override { return {{"seed", seed}}; }
  void load_state_dict(const StateDict& state) override { seed = state.at("seed").to_int(); }
  int64_t seed = 0;
};

struct Adam : Net {
  Optimizers configure_optimizers() override {
    if (sgd) return optim::SGD(parameters(), {.lr = 0.1, .momentum = 0.9});
    optim::Adam adam(parameters(), {.lr = 0.1});
    if (scheduled) return {adam, optim::StepLR(adam, {.step_size = 1})};
    return adam;
  }
  bool sgd = false, scheduled = false;
};

struct Case {
  fs::path path;
  std::function<void(Adam&, Counts&)> change;
  std::string says;
};

class RefusedResume : public ::testing::Test {
 protected:
  RefusedResume() {
    Adam net;
    Data data;
    data.seed = 5;
    const auto counts = std::make_shared<Counts>();
    Trainer(quiet({counts, SaveAt(folder.path() / "good", 3)}, 1)).fit(net, data);
  }
  /// What the checkpoint is with one entry changed.
  fs::path changed(const std::string& name, const std::function<void(StateDict&)>& change) {
    auto state = load_checkpoint(folder.path() / "good");
    change(state);
    save_checkpoint(folder.path() / name, state);
    return folder.path() / name;
  }
  void expect_refused(const Case& c) {
    Adam net;
    {
      const at::NoGradGuard no_grad;
      net.plain->weight.fill_(7);
    }
    Data data;
    data.seed = 1;
    const auto counts = std::make_shared<Counts>();
    counts->n = 100;
    if (c.change) c.change(net, *counts);
    torch::manual_seed(11);
    const auto rng = at::rand({3});
    torch::manual_seed(11);
    Trainer trainer(quiet({counts}, 2));
    EXPECT_THAT(error_of([&] { trainer.fit(net, data, {.ckpt_path = c.path.string()}); }), HasSubstr(c.says))
        << "not refused: " << c.says;
    EXPECT_TRUE(net.plain->weight.eq(7).all().item<bool>()) << c.says;
    EXPECT_EQ(counts->n, 100) << c.says;
    EXPECT_EQ(data.seed, 1) << c.says;
    EXPECT_TRUE(at::equal(at::rand({3}), rng)) << c.says;
    EXPECT_EQ(trainer.global_step(), 0) << c.says;
  }
  TemporaryFolder folder;
};

TEST_F(RefusedResume, AnotherOptimizer) {
  expect_refused({folder.path() / "good", [](Adam& net, Counts&) { net.sgd = true; }, "momentum_buffer"});
}

TEST_F(RefusedResume, AnotherNumberOfSchedulers) {
  expect_refused({folder.path() / "good", [](Adam& net, Counts&) { net.scheduled = true; }, "schedulers"});
}

TEST_F(RefusedResume, StatesThatNoCallbackTakesAreNamed) {
  Adam net;
  Data data;
  const auto said = testing::captured_stderr(
      [&] { Trainer(quiet({}, 2)).fit(net, data, {.ckpt_path = (folder.path() / "good").string()}); });
  EXPECT_THAT(said, HasSubstr("the checkpoint holds the state of "));
  EXPECT_THAT(said, HasSubstr("Counts"));
  EXPECT_THAT(said, HasSubstr(", which this trainer does not have; "));
}

TEST_F(RefusedResume, ACallbackThatRefuses) {
  Adam net;
  net.plain->weight.detach().fill_(7);
  Data data;
  data.seed = 1;
  const auto counts = std::make_shared<Counts>();
  counts->refuses = true;
  EXPECT_THROW(Trainer(quiet({counts}, 2)).fit(net, data, {.ckpt_path = (folder.path() / "good").string()}), Error);
  EXPECT_TRUE(net.plain->weight.eq(7).all().item<bool>());
  EXPECT_EQ(data.seed, 1);
}

TEST_F(RefusedResume, RandomNumbersOfAnotherLength) {
  const auto path = changed("rng", [](StateDict& state) {
    auto ranks = state.at("ranks").to_list();
    auto mine = ranks[0].to_dict();
    mine["rng"] = StateDict{{"cpu", std::string("short")}};
    state["ranks"] = StateList{mine};
  });
  Adam net;
  net.plain->weight.detach().fill_(7);
  Data data;
  data.seed = 1;
  EXPECT_THROW(Trainer(quiet({}, 2)).fit(net, data, {.ckpt_path = path.string()}), std::exception);
  EXPECT_TRUE(net.plain->weight.eq(7).all().item<bool>());
  EXPECT_EQ(data.seed, 1);
}

TEST_F(RefusedResume, TheLoadersState) {
  expect_refused({changed("loader", [](StateDict& state) { state["train_loader"] = StateDict{{"no", 1}}; }), {}, "["});
}

TEST_F(RefusedResume, AShapeOfTheModule) {
  expect_refused({changed("shape",
                          [](StateDict& state) {
                            auto model = state.at("model").to_dict();
                            model["layer.bias"] = at::zeros({3});
                            state["model"] = model;
                          }),
                  {},
                  "wrong shape"});
}

TEST_F(RefusedResume, ADamagedFile) {
  fs::copy(folder.path() / "good", folder.path() / "damaged", fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(folder.path() / "damaged"))
    if (entry.path().filename().string().starts_with("optimizers")) {
      auto bytes = read_file(entry.path());
      bytes[bytes.size() - 2] ^= 0x55;
      write_file(entry.path(), bytes);
    }
  expect_refused({folder.path() / "damaged", {}, "damaged"});
}

TEST_F(RefusedResume, WhatIsTakenResumesAsBefore) {
  Adam net;
  Data data;
  const auto counts = std::make_shared<Counts>();
  Trainer trainer(quiet({counts}, 1));
  trainer.fit(net, data, {.ckpt_path = (folder.path() / "good").string()});
  EXPECT_EQ(trainer.global_step(), 4);
  EXPECT_EQ(counts->n, 4);
  EXPECT_EQ(data.seed, 5);
}

LEVIN_PROBE(resume_refused_by_rank_1) {
  const fs::path root = arguments.at(0);
  Adam net;
  net.plain->weight.detach().fill_(7);
  Data data;
  const auto counts = std::make_shared<Counts>();
  auto options = quiet({counts}, 2, root);
  options.strategy = "ddp";
  options.devices = 2;
  Trainer trainer(options);
  trainer.launch();
  const int rank = trainer.fabric().global_rank();
  counts->refuses = rank == 1;
  std::string text = "continued";
  try {
    trainer.fit(net, data, {.ckpt_path = (root / "good").string()});
  } catch (const Error& error) {
    text = error.what();
  }
  text += net.plain->weight.eq(7).all().item<bool>() ? ", as before" : ", changed";
  testing::write_answer(root, text);
}

TEST_F(RefusedResume, OnOneRankIsTheRefusalOfAll) {
  EXPECT_EQ(testing::launch_probe("resume_refused_by_rank_1", 2, {folder.path().string()}), 0);
  EXPECT_THAT(testing::read_answers(folder.path(), 2), ::testing::Each("[counts] refused (rank 1), as before"));
}

/// An optimizer that takes no state back, as when there is no memory for it.
struct Stubborn : TrainModule {
  Stubborn() : layer(register_module("layer", torch::nn::Linear(32, 2))) {}
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    if (steps++ == 1) throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "out of memory");
    return layer(batch["x"]).mean();
  }
  Optimizers configure_optimizers() override;
  torch::nn::Linear layer;
  int steps = 0;
};

class NoState final : public OptimizerImpl {
 public:
  explicit NoState(std::vector<Tensor> params) : params_(std::move(params)) {}
  std::string name() const override { return "NoState"; }
  void step() override {}
  void zero_grad(bool) override {
    for (auto& param : params_) param.mutable_grad().reset();
  }
  size_t num_groups() const override { return 1; }
  std::vector<Tensor>& params(size_t) override { return params_; }
  double* find_hyper(size_t, std::string_view) override { return nullptr; }
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict&) override { throw Error("[NoState] there is no memory"); }

 private:
  std::vector<Tensor> params_;
};

Optimizers Stubborn::configure_optimizers() {
  return Optimizer(std::make_shared<NoState>(parameters()));
}

struct TriesOut : Callback {
  void on_fit_start(TrainerContext& run) override { run.tuning().run_trial({.steps = 3}); }
};

TEST(RefusedTrial, ATrialThatCannotBeUndoneIsAnErrorAndNotTheEnd) {
  Stubborn net;
  EXPECT_THAT(error_of([&] { Trainer(quiet({TriesOut{}}, 1)).fit(net, loader(8, 2)); }),
              HasSubstr("before a trial could not be put back: [NoState] there is no memory"))
      << "the run continued";
}

}  // namespace
}  // namespace levin::tuning_test
