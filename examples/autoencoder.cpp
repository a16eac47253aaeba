// An autoencoder for images, with its reconstructions in TensorBoard.
//   autoencoder [--epochs 3] [--devices 1]
#include "levin/data/fashion_mnist.h"
#include "levin/levin.h"

namespace {

torch::Tensor pixels(const levin::Batch& batch) {
  return batch["image"].to(torch::kFloat).div(255).flatten(1);  // [B, 784]
}

struct Autoencoder : levin::TrainModule {
  Autoencoder()
      : encoder(register_module("encoder", torch::nn::Sequential(torch::nn::Linear(784, 128), torch::nn::ReLU(),
                                                                 torch::nn::Linear(128, 16)))),
        decoder(register_module("decoder", torch::nn::Sequential(torch::nn::Linear(16, 128), torch::nn::ReLU(),
                                                                 torch::nn::Linear(128, 784), torch::nn::Sigmoid()))) {}

  torch::Tensor forward(const torch::Tensor& x) { return decoder->forward(encoder->forward(x)); }

  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    const auto x = pixels(batch);
    const auto loss = torch::mse_loss(forward(x), x);
    log("train_loss", loss, {.prog_bar = true, .on_step = true, .on_epoch = true});
    return loss;
  }

  levin::StepOutput validation_step(const levin::Batch& batch, const levin::StepInfo& at) override {
    const auto x = pixels(batch);
    const auto y = forward(x);
    log("val_loss", torch::mse_loss(y, x), {.prog_bar = true, .sync_dist = true});
    if (at.batch_idx == 0 && trainer().fabric().is_global_zero()) show(x, y);
    return {};
  }

  // Eight images above what became of them: [28 * 2, 28 * 8].
  void show(const torch::Tensor& x, const torch::Tensor& y) {
    const auto row = [](const torch::Tensor& images) {
      return images.slice(0, 0, 8).view({-1, 28, 28}).permute({1, 0, 2}).reshape({28, -1});
    };
    const auto picture = torch::cat({row(x), row(y)});
    for (const auto& logger : trainer().loggers()) logger->log_image("reconstruction", picture, global_step());
  }

  levin::StepOutput predict_step(const levin::Batch& batch, const levin::StepInfo&) override {
    return encoder->forward(pixels(batch));
  }

  levin::Optimizers configure_optimizers() override { return levin::optim::Adam(parameters(), {.lr = 1e-3}); }

  torch::nn::Sequential encoder, decoder;
};

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    levin::Trainer trainer({.accelerator = "cpu",
                            .devices = args.get("devices", "1"),
                            .callbacks = {levin::EarlyStopping({.monitor = "val_loss"})},
                            .max_epochs = args.get("epochs", 3),
                            .limit_train_batches = args.get("limit-batches", "1.0"),
                            .default_root_dir = args.get("output", "runs/autoencoder")});
    args.check_all_used();
    trainer.launch(args);
    levin::seed_everything(1, {.verbose = false});
    const auto data = levin::load_fashion_mnist_or_drawn();
    const auto train_loader = levin::make_loader(data.train, {.batch_size = 128, .shuffle = true});
    const auto val_loader = levin::make_loader(data.test, {.batch_size = 500});
    Autoencoder autoencoder;
    trainer.fit(autoencoder, train_loader, val_loader);
    const auto codes = trainer.predict(autoencoder, val_loader);
    trainer.fabric().print("the first image of the test set as 16 numbers:\n", codes[0][0].loss[0]);
  });
}
