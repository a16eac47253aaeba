// Freezing and unfreezing: gradients, groups, learning rates, checkpoints.
#include "levin/trainer/callbacks/finetuning.h"
#include "tests/trainer/callbacks/tuning_net.h"

namespace levin::tuning_test {
namespace {

/// A backbone with batch norm and a head; the optimizer gets what trains at first.
struct Transfer : TrainModule {
  Transfer() {
    torch::manual_seed(3);
    backbone = register_module("backbone", torch::nn::Sequential(torch::nn::Linear(32, 6), torch::nn::BatchNorm1d(6)));
    head = register_module("head", torch::nn::Linear(6, 2));
  }
  StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto y = head(backbone->forward(batch["x"]));
    return at::mse_loss(y, at::ones_like(y));
  }
  Optimizers configure_optimizers() override {
    optim::SGD sgd(head->parameters(), {.lr = 0.1, .momentum = 0.9});
    return sgd;
  }
  Tensor& first_weight() { return backbone->ptr(0)->as<torch::nn::Linear>()->weight; }
  torch::nn::BatchNorm1dImpl& norm() { return *backbone->ptr(1)->as<torch::nn::BatchNorm1d>(); }

  torch::nn::Sequential backbone{nullptr};
  torch::nn::Linear head{nullptr};
};

struct Watch : Callback {
  void on_train_epoch_start(TrainerContext& run) override {
    const auto& optimizer = run.optimizers()[0];
    rates.push_back(optimizer.num_groups() > 1 ? optimizer.lr(1) : 0);
    weights.push_back(static_cast<Transfer&>(run.module()).first_weight().detach().clone());
    means.push_back(static_cast<Transfer&>(run.module()).norm().running_mean.clone());
  }
  std::vector<double> rates;
  std::vector<Tensor> weights, means;
};

TEST(BackboneFinetuning, TrainsTheBackboneFromAnEpochOn) {
  const auto watch = std::make_shared<Watch>();
  Transfer net;
  Trainer(quiet({BackboneFinetuning({.unfreeze_backbone_at_epoch = 2}), watch}, 7)).fit(net, loader(32, 4));
  // A tenth of 0.1, doubled until it reaches the rest.
  EXPECT_THAT(watch->rates, ::testing::Pointwise(::testing::DoubleNear(1e-12),
                                                 std::vector<double>{0, 0, 0.01, 0.02, 0.04, 0.08, 0.1}));
  EXPECT_TRUE(at::equal(watch->weights[0], watch->weights[2]));
  EXPECT_FALSE(at::equal(watch->weights[2], watch->weights[3]));
  // Batch norm continues with its statistics unless it is told not to.
  EXPECT_FALSE(at::equal(watch->means[0], watch->means[1]));
}

TEST(BackboneFinetuning, TakesItsOptions) {
  const auto watch = std::make_shared<Watch>();
  Transfer net;
  Trainer(quiet({BackboneFinetuning({.unfreeze_backbone_at_epoch = 1,
                                     .lambda_func = [](int64_t epoch) { return static_cast<double>(epoch); },
                                     .backbone_initial_lr = 0.03,
                                     .should_align = false,
                                     .train_bn = false}),
                 watch},
                4))
      .fit(net, loader(32, 4));
  EXPECT_THAT(watch->rates,
              ::testing::Pointwise(::testing::DoubleNear(1e-12), std::vector<double>{0, 0.03, 0.03 * 3, 0.03 * 3 * 4}));
  EXPECT_TRUE(at::equal(watch->means[0], watch->means[3]));
  EXPECT_FALSE(net.norm().weight.requires_grad());
  EXPECT_TRUE(net.first_weight().requires_grad());
}

TEST(BackboneFinetuning, ResumesExactly) {
  for (const int64_t save_after : {3, 16, 20, 27}) {
    TemporaryFolder folder;
    const auto callback = [] { return BackboneFinetuning({.unfreeze_backbone_at_epoch = 2}); };
    Transfer whole, resumed;
    Trainer(quiet({callback(), SaveAt(folder.path() / "kept", save_after)}, 5, folder.path()))
        .fit(whole, loader(32, 4));
    const auto watch = std::make_shared<Watch>();
    Trainer(quiet({callback(), watch}, 5, folder.path()))
        .fit(resumed, loader(32, 4), {}, {.ckpt_path = (folder.path() / "kept").string()});
    expect_equal(whole, resumed, "after " + std::to_string(save_after));
    EXPECT_NEAR(watch->rates.back(), 0.04, 1e-12);
  }
}

TEST(BackboneFinetuning, RefusesInOneLine) {
  EXPECT_THAT(error_of([] { BackboneFinetuning({.unfreeze_backbone_at_epoch = -1}); }), HasSubstr("=-1"));
  Net net;
  EXPECT_THAT(error_of([&] { Trainer(quiet({BackboneFinetuning()}, 1)).fit(net, loader(8, 4)); }),
              HasSubstr("child of the module \"backbone\" is not known"));
}

TEST(BaseFinetuning, LeavesParametersThatTheOptimizerHas) {
  struct Thaw : BaseFinetuning {
    void freeze_before_training(TrainModuleBase& module) override { freeze(*module.named_children()["backbone"]); }
    void finetune_function(TrainModuleBase& module, int64_t epoch, Optimizer& optimizer) override {
      if (epoch == 1) unfreeze_and_add_param_group(*module.named_children()["backbone"], optimizer, {});
    }
  };
  struct All : Transfer {
    Optimizers configure_optimizers() override {
      return optim::SGD(BaseFinetuning::trainable_parameters(*this), {.lr = 0.1});
    }
  };
  const auto watch = std::make_shared<Watch>();
  All net;
  Trainer(quiet({Thaw(), watch}, 3)).fit(net, loader(32, 4));
  // Batch norm was trained from the start and stays in the first group; a tenth of its rate is the default.
  EXPECT_THAT(watch->rates, ::testing::Pointwise(::testing::DoubleNear(1e-12), std::vector<double>{0, 0.01, 0.01}));
  EXPECT_FALSE(at::equal(watch->weights[1], watch->weights[2]));
}

}  // namespace
}  // namespace levin::tuning_test
