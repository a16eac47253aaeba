// A vision transformer on Fashion-MNIST with the Trainer.
//   trainer_vit [--devices 2] [--precision bf16-mixed] [--epochs 4] [--resume last]
#include "levin/data/fashion_mnist.h"
#include "levin/levin.h"

namespace {

using levin::Batch;
using levin::StepInfo;

struct Classifier : levin::TrainModule {
  explicit Classifier(double lr)
      : net(register_module("net", levin::models::vit({.image_size = 28,
                                                       .patch_size = 7,
                                                       .num_layers = 4,
                                                       .num_heads = 4,
                                                       .hidden_dim = 64,
                                                       .mlp_dim = 128,
                                                       .num_classes = 10,
                                                       .in_channels = 1}))) {
    save_hyperparameters({{"lr", lr}});
  }

  torch::Tensor forward(const Batch& batch) {
    return net(batch["image"].to(torch::kFloat).div(255).sub(0.2860).div(0.3530));
  }

  levin::StepOutput training_step(const Batch& batch, const StepInfo&) override {
    const auto loss = levin::cross_entropy(forward(batch), batch["label"]);
    log("train_loss", loss, {.prog_bar = true});
    return loss;
  }

  levin::StepOutput validation_step(const Batch& batch, const StepInfo&) override {
    const auto logits = forward(batch);
    log("val_loss", levin::cross_entropy(logits, batch["label"]), {.sync_dist = true});
    log("val_acc", logits.argmax(1).eq(batch["label"]).to(torch::kFloat).mean(), {.prog_bar = true, .sync_dist = true});
    return {};
  }

  levin::StepOutput test_step(const Batch& batch, const StepInfo& at) override { return validation_step(batch, at); }

  levin::Optimizers configure_optimizers() override {
    const double lr = hparams.at("lr").to_double();
    levin::optim::AdamW adamw(parameters(), {.lr = lr, .weight_decay = 0.05});
    const auto steps = trainer().estimated_stepping_batches().value_or(1000);
    return {adamw,
            {.scheduler = levin::optim::OneCycleLR(adamw, {.max_lr = lr, .total_steps = steps, .pct_start = 0.15}),
             .interval = "step"}};
  }

  levin::models::VisionTransformer net;
};

struct Fashion : levin::DataModule {
  explicit Fashion(int64_t batch) : batch_size(batch) {}
  void setup(std::string_view) override { data = levin::load_fashion_mnist_or_drawn(); }
  levin::Loaders<Batch> train_dataloader() override {
    return levin::make_loader(data.train, {.batch_size = batch_size, .shuffle = true, .drop_last = true});
  }
  levin::Loaders<Batch> val_dataloader() override { return levin::make_loader(data.test, {.batch_size = 500}); }
  levin::Loaders<Batch> test_dataloader() override { return val_dataloader(); }

  int64_t batch_size;
  levin::ImageData data;
};

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    levin::Trainer trainer(
        {.accelerator = args.get("accelerator", "cpu"),
         .devices = args.get("devices", "2"),
         .precision = args.get("precision", "32-true"),
         .callbacks = {levin::ModelCheckpoint({.monitor = "val_acc", .save_last = true, .mode = "max"}),
                       levin::LearningRateMonitor(), levin::MemoryReport()},
         .max_epochs = args.get("epochs", 4),
         .limit_train_batches = args.get("limit-batches", "1.0"),
         .gradient_clip_val = 1.0,
         .default_root_dir = args.get("output", "runs/trainer_vit")});
    const auto resume = args.get("resume", "");
    args.check_all_used();
    trainer.launch(args);
    levin::seed_everything(1, {.verbose = false});
    Classifier classifier(1.5e-3);
    Fashion data(128 / trainer.fabric().world_size());
    trainer.fit(classifier, data, {.ckpt_path = resume});
    trainer.test(classifier, data, {.ckpt_path = "best"});
  });
}
