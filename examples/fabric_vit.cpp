// plain_vit.cpp with Fabric: any number of processes, on CPUs or GPUs, in any precision, by flags only.
//   fabric_vit [--accelerator cpu|cuda] [--devices N] [--precision bf16-mixed] [--strategy ddp]
#include "levin/levin.h"
#include "small_vit.h"

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    levin::Fabric fabric({.accelerator = args.get("accelerator", "auto"),
                          .strategy = args.get("strategy", "auto"),
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
    const int64_t batch_size = 64 / fabric.world_size();
    auto loader = fabric.setup_dataloaders(levin::make_loader(levin::TensorDataset({{"image", images}, {"label", labels}}),
                                                              {.batch_size = batch_size, .shuffle = true}));

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
      const auto mean = fabric.all_reduce(torch::tensor(sum / steps), "mean").item<double>();
      fabric.print("epoch ", epoch, " loss ", mean);
    }
    fabric.save("fabric_vit", {{"model", net}, {"optimizer", optimizer}});
  });
}
