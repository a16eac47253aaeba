#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/linear.h>

#include "levin/data/loader.h"
#include "levin/nn/functional.h"
#include "levin/program/recipes.h"
#include "levin/trainer/data_module.h"
#include "levin/trainer/train_module.h"

namespace levin::cli {
namespace {

/// The smallest model worth training: it shows in seconds whether a machine, a strategy or a flag works. The target is
/// 1 for every input: weights of 0 and a bias of 1 have a loss of 0, and the defaults get below 1e-4.
class BoringModel : public TrainModule {
 public:
  struct Options {
    int64_t in_features = 32;
    int64_t out_features = 2;

    void fields(auto f) {
      f("in_features", in_features, "input features; must equal data.features");
      f("out_features", out_features, "output features");
    }
  };

  explicit BoringModel(const Options& options)
      : layer_(register_module("layer", torch::nn::Linear(options.in_features, options.out_features))) {}

  StepOutput training_step(const Batch& batch, const StepInfo&) override { return step(batch, "train_loss"); }
  StepOutput validation_step(const Batch& batch, const StepInfo&) override { return step(batch, "val_loss"); }
  StepOutput test_step(const Batch& batch, const StepInfo&) override { return step(batch, "test_loss"); }
  StepOutput predict_step(const Batch& batch, const StepInfo&) override { return layer_(batch["x"]); }

 private:
  StepOutput step(const Batch& batch, std::string_view name) {
    const auto y = layer_(batch["x"]);
    auto loss = levin::mse_loss(y, at::ones_like(y));
    log(name, loss, {.prog_bar = true, .sync_dist = name != "train_loss"});
    return loss;
  }

  torch::nn::Linear layer_;
};

class RandomNumbers : public DataModule {
 public:
  struct Options {
    int64_t features = 32;
    int64_t samples = 256;
    int64_t batch_size = 8;

    void fields(auto f) {
      f("features", features, "features per sample");
      f("samples", samples, "samples per split");
      f("batch_size", batch_size, "batch size per rank");
    }
  };

  explicit RandomNumbers(const Options& options) : options_(options) {}

  Loaders<Batch> train_dataloader() override { return loader(1, true); }
  Loaders<Batch> val_dataloader() override { return loader(2, false); }
  Loaders<Batch> test_dataloader() override { return loader(3, false); }
  Loaders<Batch> predict_dataloader() override { return loader(4, false); }

 private:
  Loaders<Batch> loader(uint64_t seed, bool shuffle) const {
    auto generator = at::detail::createCPUGenerator(seed);
    return make_loader(TensorDataset({{"x", at::randn({options_.samples, options_.features}, generator)}}),
                       {.batch_size = options_.batch_size, .shuffle = shuffle});
  }

  Options options_;
};

}  // namespace

Recipe boring() {
  return {
      "boring", "one linear layer on random data, for quick checks",
      R"(trainer:
  max_epochs: 5
  log_every_n_steps: 8
optimizer:
  class: SGD
  lr: 0.1
lr_scheduler:
  class: StepLR
  step_size: 1
  gamma: 0.8
)",
      []() -> std::unique_ptr<TrainProgram> { return std::make_unique<TrainProgramOf<BoringModel, RandomNumbers>>(); }};
}

}  // namespace levin::cli
