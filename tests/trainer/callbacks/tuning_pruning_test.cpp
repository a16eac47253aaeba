// ModelPruning: what goes, what stays zero, what comes back.
#include "levin/trainer/callbacks/model_pruning.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

int64_t zeros_of(const Tensor& tensor) {
  return tensor.numel() - tensor.count_nonzero().item<int64_t>();
}

struct Zeros : Callback {
  void on_train_batch_end(TrainerContext& run, const StepOutput&, const AnyBatch&, int64_t) override {
    count.push_back(zeros_of(static_cast<Net&>(run.module()).plain->weight));
  }
  std::vector<int64_t> count;
};

TEST(ModelPruning, KeepsPrunedWeightsZero) {
  // After the pruning callback in the list, so that it sees what is masked.
  const auto zeros = std::make_shared<Zeros>();
  const auto pruning = std::make_shared<ModelPruning>(ModelPruningOptions{
      .parameters_to_prune = {"layer.weight"}, .amount = 0.25, .use_lottery_ticket_hypothesis = false});
  Net net;
  net.momentum = 0.9;
  Trainer trainer(quiet({pruning, zeros}, 3));
  trainer.fit(net, loader(16, 4));
  // A quarter of what is left, each epoch: 64 -> 48 -> 36 -> 27.
  EXPECT_EQ(zeros->count, (std::vector<int64_t>{0, 0, 0, 0, 16, 16, 16, 16, 28, 28, 28, 28}));
  EXPECT_EQ(zeros_of(net.plain->weight), 37);
  EXPECT_EQ(zeros_of(net.plain->bias), 0);
  EXPECT_NEAR(pruning->sparsity(), 37.0 / 64, 1e-12);
  EXPECT_NEAR(trainer.metric("sparsity").value(), 37.0 / 64, 1e-6);
}

TEST(ModelPruning, TakesTheSmallestOfAll) {
  Net net, untouched;
  auto options = quiet({ModelPruning({.amount = int64_t{5}})}, 1);
  // The lottery ticket puts everything else back to where it was.
  Trainer(options).fit(net, loader(16, 4));
  const auto before = at::cat({untouched.plain->weight.flatten(), untouched.plain->bias.flatten()});
  const auto after = at::cat({net.plain->weight.flatten(), net.plain->bias.flatten()});
  EXPECT_EQ(zeros_of(after), 5);
  EXPECT_TRUE(at::equal(after, before * after.ne(0)));
}

TEST(ModelPruning, ChoosesInEachParameter) {
  Net net;
  Trainer(quiet({ModelPruning({.use_global_unstructured = false, .amount = 0.5})}, 1)).fit(net, loader(16, 4));
  EXPECT_EQ(zeros_of(net.plain->weight), 32);
  EXPECT_EQ(zeros_of(net.plain->bias), 1);
}

TEST(ModelPruning, PrunesAtRandomAndByEpoch) {
  Net net;
  ModelPruningOptions options{.pruning_fn = "random_unstructured", .parameter_names = {"weight"}};
  options.amount = [](int64_t epoch) { return epoch == 1 ? 0.5 : 0.0; };
  options.apply_pruning = [](int64_t epoch) { return epoch < 2; };
  Trainer(quiet({ModelPruning(options)}, 4)).fit(net, loader(16, 4));
  EXPECT_EQ(zeros_of(net.plain->weight), 32);
}

TEST(ModelPruning, MasksGradientsBeforeClipping) {
  struct Norms : Callback {
    void on_before_optimizer_step(TrainerContext& run, Optimizer&) override {
      const auto& weight = static_cast<Net&>(run.module()).plain->weight;
      pruned.push_back(zeros_of(weight));
      masked.push_back(zeros_of(weight.grad()));
    }
    std::vector<int64_t> pruned, masked;
  };
  const auto norms = std::make_shared<Norms>();
  Net net;
  Trainer(quiet({ModelPruning({.parameter_names = {"weight"}}), norms}, 2)).fit(net, loader(8, 4));
  EXPECT_EQ(norms->pruned, (std::vector<int64_t>{0, 0, 32, 32}));
  EXPECT_EQ(norms->masked, norms->pruned);
}

TEST(ModelPruning, ResumesExactly) {
  for (const int64_t save_after : {2, 6, 8, 11}) {
    TemporaryFolder folder;
    const auto callback = [] {
      return ModelPruning({.amount = 0.3, .use_lottery_ticket_hypothesis = [](int64_t epoch) { return epoch == 1; }});
    };
    Net whole, resumed;
    whole.momentum = resumed.momentum = 0.9;
    Trainer(quiet({callback(), SaveAt(folder.path() / "kept", save_after)}, 4, folder.path()))
        .fit(whole, loader(16, 4));
    Trainer(quiet({callback()}, 4, folder.path()))
        .fit(resumed, loader(16, 4), {}, {.ckpt_path = (folder.path() / "kept").string()});
    expect_equal(whole, resumed, "after " + std::to_string(save_after));
  }
}

TEST(ModelPruning, MayBePermanentOrNot) {
  for (const bool permanent : {true, false}) {
    ModelPruningOptions options{.parameter_names = {"weight"}, .make_pruning_permanent = permanent};
    options.apply_pruning = [first = true](int64_t) mutable { return std::exchange(first, false); };
    Net net;
    Trainer trainer(quiet({ModelPruning(options)}, 1));
    trainer.fit(net, loader(16, 4));
    EXPECT_EQ(zeros_of(net.plain->weight), 32);
    trainer.fit(net, loader(16, 4));
    EXPECT_EQ(zeros_of(net.plain->weight), permanent ? 0 : 32);
  }
}

TEST(ModelPruning, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { ModelPruning({.pruning_fn = "l1_unstructure"}); }), HasSubstr("did you mean"));
  EXPECT_THAT(error_of([] { ModelPruning({.amount = 1.5}); }), HasSubstr("amount=1.5"));
  EXPECT_THAT(error_of([] { ModelPruning({.verbose = 3}); }), HasSubstr("verbose=3"));
  Net net;
  EXPECT_THAT(error_of([&] {
                Trainer(quiet({ModelPruning({.parameters_to_prune = {"layer.wight"}})}, 1)).fit(net, loader(8, 4));
              }),
              HasSubstr("did you mean \"layer.weight\"?"));
  EXPECT_THAT(error_of([&] { Trainer(quiet({ModelPruning({.amount = int64_t{1000}})}, 1)).fit(net, loader(8, 4)); }),
              HasSubstr("amount=1000"));
}

}  // namespace
}  // namespace levin::tuning_test
