// A training program in plain LibTorch: one process, one device, float32. fabric_vit.cpp is the same program with Fabric.
#include <iostream>

#include "small_vit.h"

int main() {
  torch::manual_seed(1);
  const auto device = torch::Device(torch::kCPU);
  SmallViT model;
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto [images, labels] = drawn_images(4096, 2);
  const int64_t batch_size = 64;

  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto order = torch::randperm(images.size(0));
    double sum = 0;
    int64_t steps = 0;
    for (int64_t i = 0; i + batch_size <= order.size(0); i += batch_size) {
      const auto index = order.slice(0, i, i + batch_size);
      const auto x = images.index_select(0, index).to(device);
      const auto y = labels.index_select(0, index).to(device);
      const auto loss = torch::nn::functional::cross_entropy(model(x), y);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      sum += loss.item<double>();
      ++steps;
    }
    std::cout << "epoch " << epoch << " loss " << sum / steps << "\n";
  }
  torch::save(model, "plain_vit.pt");
}
