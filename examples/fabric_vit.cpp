// plain_vit.cpp with Fabric: on one CPU, many, or GPUs, in any precision, by flags only (--devices 2 --precision
// bf16-mixed).
#include "levin/levin.h"
#include "small_vit.h"

void train(levin::Args& args) {
  levin::Fabric fabric({.accelerator = args.get("accelerator", "auto"),
                        .devices = args.get("devices", "auto"),
                        .num_nodes = args.get("num-nodes", 1),
                        .precision = args.get("precision", "32-true")});
  args.check_all_used();
  fabric.launch(args);
  torch::manual_seed(1);
  SmallViT model;
  torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(1e-3));
  auto [net, optimizer] = fabric.setup(model, adam);
  const auto [images, labels] = drawn_images(4096, 2);
  auto loader =
      fabric.setup_dataloaders(levin::make_loader(levin::TensorDataset({{"image", images}, {"label", labels}}),
                                                  {.batch_size = 64 / fabric.world_size(), .shuffle = true}));

  for (int epoch = 0; epoch < 2; ++epoch) {
    double sum = 0;
    int64_t steps = 0;
    for (auto& batch : loader) {
      const auto loss = torch::nn::functional::cross_entropy(net(batch["image"]), batch["label"]);
      fabric.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      sum += loss.item<double>();
      ++steps;
    }
    fabric.print("epoch ", epoch, " loss ", sum / steps);
  }
  fabric.save("fabric_vit", {{"model", net}, {"optimizer", optimizer}});
}

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
