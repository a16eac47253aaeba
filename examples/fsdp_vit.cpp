// A vision transformer sharded over processes (FSDP): each holds a shard of every parameter, gradient and optimizer
// state, and gathers a block only while the block computes. Two CPU processes by default.
//   fsdp_vit [--devices 2] [--strategy fsdp] [--precision 32-true] [--accelerator cpu] [--epochs 2]
#include "levin/levin.h"
#include "small_vit.h"

namespace {

void train(levin::Args& args) {
  levin::Fabric fabric({.accelerator = args.get("accelerator", "cpu"),
                        .strategy = args.get("strategy", "fsdp"),
                        .devices = args.get("devices", "2"),
                        .precision = args.get("precision", "32-true")});
  const auto epochs = args.get("epochs", 2);
  args.check_all_used();
  fabric.launch(args);
  levin::Fabric::seed_everything(1, {.verbose = false});

  // Nothing is allocated here: setup makes the parameters block by block, and keeps of each what is this process's
  // part.
  auto model = fabric.init_module(
      [] {
        return levin::models::vit({.image_size = 28,
                                   .patch_size = 7,
                                   .num_layers = 4,
                                   .num_heads = 4,
                                   .hidden_dim = 64,
                                   .mlp_dim = 128,
                                   .num_classes = 10,
                                   .in_channels = 1});
      },
      {.meta = true});
  int64_t all = 0, mine = 0;
  for (const auto& parameter : levin::unique_parameters(*model)) all += parameter.numel();
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(model->parameters(), {.lr = 1e-3}));
  for (const auto& parameter : levin::unique_parameters(*model)) mine += parameter.numel();
  fabric.print(fabric.plan().to_string(), ": ", mine, " of ", all, " parameters in each process");

  const auto [images, labels] = drawn_images(4096, 2);
  auto loader =
      fabric.setup_dataloaders(levin::make_loader(levin::TensorDataset({{"image", images}, {"label", labels}}),
                                                  {.batch_size = 64 / fabric.world_size(), .shuffle = true}));
  net->train();
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    auto sum = torch::zeros({}, fabric.device());
    for (auto& batch : loader) {
      auto loss = levin::cross_entropy(net(batch["image"]), batch["label"]);
      fabric.backward(loss);
      fabric.clip_gradients(net, optimizer, {.max_norm = 1.0});
      optimizer.step();
      optimizer.zero_grad();
      sum += loss.detach();
    }
    const auto mean = fabric.all_reduce(sum / static_cast<double>(loader.size()));
    fabric.print("epoch ", epoch, " loss ", mean.item<double>());
  }
  fabric.save("fsdp_vit", {{"model", net}, {"optimizer", optimizer}});  // any number of processes can load it
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
