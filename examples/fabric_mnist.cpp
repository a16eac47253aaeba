// plain_mnist.cpp with Fabric: on one CPU, many, or GPUs, by flags only (--devices 2 --strategy fsdp).
#include "digits.h"
#include "levin/levin.h"

template <class Loader>
void train(levin::Fabric& fabric, levin::FabricModule<Net>& model, levin::Optimizer& optimizer, Loader& loader) {
  model->train();
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const auto loss = torch::nll_loss(model(batch.data), batch.target);
    fabric.backward(loss);
    optimizer.step();
  }
}

template <class Loader>
void test(levin::Fabric& fabric, levin::FabricModule<Net>& model, Loader& loader, int64_t size) {
  torch::NoGradGuard no_grad;
  model->eval();
  double loss = 0, correct = 0;
  // Samples of this rank. Its last batch may be filled up, so that all ranks have as many.
  int64_t left = (size - fabric.global_rank() + fabric.world_size() - 1) / fabric.world_size();
  for (const auto& batch : loader) {
    const auto rows = std::min(left, batch.target.size(0));
    const auto output = model(batch.data).narrow(0, 0, rows), target = batch.target.narrow(0, 0, rows);
    loss += torch::nll_loss(output, target, {}, torch::Reduction::Sum).template item<double>();
    correct += output.argmax(1).eq(target).sum().template item<double>();
    left -= rows;
  }
  const auto sums = fabric.all_reduce(fabric.to_device(torch::tensor({loss, correct}, torch::kDouble)), "sum").cpu();
  fabric.print("test loss ", sums[0].item<double>() / size, ", accuracy ", sums[1].item<double>() / size);
}

void run(levin::Args& args) {
  levin::Fabric fabric({.accelerator = args.get("accelerator", "auto"),
                        .strategy = args.get("strategy", "auto"),
                        .devices = args.get("devices", "auto"),
                        .precision = args.get("precision", "32-true")});
  args.check_all_used();
  fabric.launch(args);
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  auto [model, optimizer] = fabric.setup(net, sgd);
  const auto train_data = Digits(4096, 2).map(torch::data::transforms::Stack<>());
  const auto test_data = Digits(1001, 3).map(torch::data::transforms::Stack<>());
  auto train_loader = fabric.setup_dataloaders(
      levin::make_loader(train_data, {.batch_size = 64 / fabric.world_size(), .shuffle = true}));
  auto test_loader = fabric.setup_dataloaders(levin::make_loader(test_data, {.batch_size = 250}));

  for (int epoch = 0; epoch < 2; ++epoch) {
    train(fabric, model, optimizer, train_loader);
    test(fabric, model, test_loader, 1001);
  }
  fabric.save("fabric_mnist", {{"model", model}, {"optimizer", optimizer}});
}

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, run);
}
