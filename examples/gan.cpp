// A GAN with manual optimization: two optimizers that alternate. It learns a ring of eight blobs.
//   gan [--epochs 30] [--devices 1]
#include "levin/levin.h"

namespace {

constexpr int64_t kNoise = 8;

torch::nn::Sequential mlp(int64_t in, int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 64), torch::nn::LeakyReLU(), torch::nn::Linear(64, 64),
                               torch::nn::LeakyReLU(), torch::nn::Linear(64, out));
}

torch::Tensor ring(int64_t count) {
  const auto angle = torch::randint(8, {count}).to(torch::kFloat) * (2 * M_PI / 8);
  return torch::stack({angle.cos(), angle.sin()}, 1) + 0.05 * torch::randn({count, 2});
}

torch::Tensor loss_of(const torch::Tensor& logits, double target) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, target));
}

struct Gan : levin::TrainModule {
  Gan()
      : generator(register_module("generator", mlp(kNoise, 2))),
        discriminator(register_module("discriminator", mlp(2, 1))) {
    automatic_optimization = false;
  }

  levin::StepOutput training_step(const levin::Batch& batch, const levin::StepInfo&) override {
    const auto real = batch["x"];
    const auto noise = torch::randn({real.size(0), kNoise}, real.options());

    auto& g = optimizer(0);
    toggle_optimizer(g);
    const auto g_loss = loss_of(discriminator->forward(generator->forward(noise)), 1);
    g.zero_grad();
    manual_backward(g_loss);
    g.step();
    untoggle_optimizer(g);

    auto& d = optimizer(1);
    toggle_optimizer(d);
    const auto fake = generator->forward(noise).detach();
    const auto d_loss = (loss_of(discriminator->forward(real), 1) + loss_of(discriminator->forward(fake), 0)) / 2;
    d.zero_grad();
    manual_backward(d_loss);
    d.step();
    untoggle_optimizer(d);

    log("g_loss", g_loss, {.prog_bar = true});
    log("d_loss", d_loss, {.prog_bar = true});
    return {};
  }

  // How many of 1000 points lie on a blob, and how many blobs have any.
  void on_train_epoch_end() override {
    const torch::NoGradGuard no_grad;
    const auto points = generator->forward(torch::randn({1000, kNoise}));
    const auto angle = torch::arange(8) * (2 * M_PI / 8);
    const auto centers = torch::stack({angle.cos(), angle.sin()}, 1).to(torch::kFloat);
    const auto [distance, blob] = torch::cdist(points, centers).min(1);
    const auto near = distance.lt(0.2);
    log("on_ring", near.to(torch::kFloat).mean(), {.prog_bar = true});
    log("blobs", torch::bincount(blob.index({near}), {}, 8).gt(10).sum(), {.prog_bar = true});
  }

  levin::Optimizers configure_optimizers() override {
    return {levin::optim::Adam(generator->parameters(), {.lr = 1e-3, .betas = {0.5, 0.9}}),
            levin::optim::Adam(discriminator->parameters(), {.lr = 1e-3, .betas = {0.5, 0.9}})};
  }

  torch::nn::Sequential generator, discriminator;
};

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    levin::Trainer trainer({.accelerator = "cpu",
                            .strategy = "ddp_find_unused_parameters_true",
                            .devices = args.get("devices", "1"),
                            .max_epochs = args.get("epochs", 30),
                            .default_root_dir = args.get("output", "runs/gan")});
    args.check_all_used();
    trainer.launch(args);
    levin::seed_everything(1, {.verbose = false});
    Gan gan;
    trainer.fit(gan,
                levin::make_loader(levin::TensorDataset({{"x", ring(8192)}}), {.batch_size = 128, .shuffle = true}));
    trainer.fabric().print("points on the ring: ", *trainer.metric("on_ring"),
                           ", blobs found: ", *trainer.metric("blobs"));
  });
}
