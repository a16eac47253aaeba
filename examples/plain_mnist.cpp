// MNIST as LibTorch programs have it: train() and test() over torch's data loaders. fabric_mnist.cpp is the same
// program with Fabric.
#include <cstdio>

#include "digits.h"

template <class Loader>
void train(Net& model, torch::optim::Optimizer& optimizer, Loader& loader) {
  model->train();
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const auto loss = torch::nll_loss(model->forward(batch.data), batch.target);
    loss.backward();
    optimizer.step();
  }
}

template <class Loader>
void test(Net& model, Loader& loader, int64_t size) {
  torch::NoGradGuard no_grad;
  model->eval();
  double loss = 0, correct = 0;
  for (const auto& batch : loader) {
    const auto output = model->forward(batch.data);
    loss += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum).template item<double>();
    correct += output.argmax(1).eq(batch.target).sum().template item<double>();
  }
  std::printf("test loss %.4f, accuracy %.4f\n", loss / size, correct / size);
}

int main() {
  torch::manual_seed(1);
  Net model;
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  const auto train_data = Digits(4096, 2).map(torch::data::transforms::Stack<>());
  const auto test_data = Digits(1001, 3).map(torch::data::transforms::Stack<>());
  auto train_loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(train_data, 64);
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(test_data, 250);

  for (int epoch = 0; epoch < 2; ++epoch) {
    train(model, sgd, *train_loader);
    test(model, *test_loader, 1001);
  }
  torch::save(model, "plain_mnist.pt");
}
