#pragma once
// Drawn digits as a torch dataset, and a small convolutional net: for the two MNIST programs that show what Fabric
// changes.
#include <torch/torch.h>

/// Ten kinds of noisy images [1, 28, 28], the same ones for a seed.
struct Digits : torch::data::datasets::Dataset<Digits> {
  Digits(int64_t count, uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    labels = torch::randint(0, 10, {count}, generator, torch::kLong);
    const auto shapes = torch::rand({10, 1, 28, 28}, at::detail::createCPUGenerator(1));
    images = shapes.index_select(0, labels) + 0.5 * torch::randn({count, 1, 28, 28}, generator);
  }
  torch::data::Example<> get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {images[i], labels[i]};
  }
  std::optional<size_t> size() const override { return labels.size(0); }

  torch::Tensor images, labels;
};

struct NetImpl : torch::nn::Module {
  NetImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(1, 10, 5))),
        conv2(register_module("conv2", torch::nn::Conv2d(10, 20, 5))),
        fc1(register_module("fc1", torch::nn::Linear(320, 50))),
        fc2(register_module("fc2", torch::nn::Linear(50, 10))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(conv2(x), 2));
    return torch::log_softmax(fc2(torch::relu(fc1(x.flatten(1)))), 1);
  }
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Net);
