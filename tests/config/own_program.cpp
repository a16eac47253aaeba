// A program that has all of the command line in one line, with options of its own.
#include <torch/nn/modules/linear.h>

#include "levin/cli/train_main.h"
#include "levin/data/loader.h"
#include "levin/nn/functional.h"
#include "levin/optim/sgd.h"

namespace {

struct Line : levin::TrainModule {
  struct Options {
    int64_t inputs = 2;
    double lr = 0.1;

    void fields(auto f) {
      f("inputs", inputs, "numbers of a point");
      f("lr", lr, "learning rate of the model's own optimizer");
    }
  };

  explicit Line(const Options& o) : options(o), layer(register_module("layer", torch::nn::Linear(o.inputs, 1))) {}

  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    auto loss = levin::mse_loss(layer(batch["x"]), batch["y"]);
    log("train_loss", loss, {.on_epoch = true});
    return loss;
  }
  void on_train_end() override {
    print("optimizer ", optimizer().name(), " lr ", optimizer().lr(), " epochs ", current_epoch());
  }
  levin::Optimizers configure_optimizers() override { return levin::optim::SGD(parameters(), {.lr = options.lr}); }

  Options options;
  torch::nn::Linear layer;
};

struct Points : levin::DataModule {
  levin::Loaders<levin::Batch> train_dataloader() override {
    const auto x = torch::linspace(-1, 1, 32).reshape({16, 2});
    return levin::make_loader(levin::TensorDataset({{"x", x}, {"y", x.sum(1, true)}}), {.batch_size = 4});
  }
};

}  // namespace

int main(int argc, char** argv) {
  return levin::train_main<Line, Points>(argc, argv, {.defaults = "trainer: {max_epochs: 2, accelerator: cpu}"});
}
