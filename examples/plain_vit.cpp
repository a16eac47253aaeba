// A training program in plain LibTorch: one process, the CPU, float32. fabric_vit.cpp is the same program with Fabric.
#include <iostream>

#include "small_vit.h"

void train() {
  torch::manual_seed(1);
  SmallViT model;
  torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto [images, labels] = drawn_images(4096, 2);

  for (int epoch = 0; epoch < 2; ++epoch) {
    double sum = 0;
    int64_t steps = 0;
    for (const auto& [image, label] : shuffled_batches(images, labels, 64)) {
      const auto loss = torch::nn::functional::cross_entropy(model(image), label);
      loss.backward();
      adam.step();
      adam.zero_grad();
      sum += loss.item<double>();
      ++steps;
    }
    std::cout << "epoch " << epoch << " loss " << sum / steps << "\n";
  }
  torch::save(model, "plain_vit.pt");
}

int main() {
  train();
}
