// The cost of one tiny training step: Linear(32, 2), SGD, batch 1. Prints one JSON line per way of writing the loop.
//   step_overhead [--mode plain|fabric|all] [--steps N]
#include <chrono>
#include <cstdio>

#include "levin/levin.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

template <class Step>
void report(const char* name, int64_t steps, Step&& step) {
  for (int i = 0; i < 100; ++i) step();
  // The best of several rounds: other programs on the machine only ever make a round slower.
  double best = 1e9;
  for (int round = 0; round < 10; ++round) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps / 10; ++i) step();
    best = std::min(best, seconds_since(start) / (steps / 10));
  }
  std::printf("{\"case\": \"%s\", \"us\": %.3f}\n", name, best * 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto mode = args.get("mode", "all");
    const auto steps = args.get("steps", 20000);
    at::set_num_threads(1);
    torch::manual_seed(0);
    const auto x = torch::randn({1, 32});

    if (mode == "plain" || mode == "all") {
      torch::nn::Linear model(32, 2);
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      report("plain", steps, [&] {
        optimizer.zero_grad();
        model(x).sum().backward();
        optimizer.step();
      });
    }
    if (mode == "fabric" || mode == "all") {
      levin::Fabric fabric({.accelerator = "cpu"});
      torch::nn::Linear model(32, 2);
      auto [net, optimizer] = fabric.setup(model, levin::optim::SGD(model->parameters(), {.lr = 0.1}));
      report("fabric", steps, [&, &net = net, &optimizer = optimizer] {
        optimizer.zero_grad();
        fabric.backward(net(x).sum());
        optimizer.step();
      });
    }
    if (mode == "fabric-torch-optimizer" || mode == "all") {
      levin::Fabric fabric({.accelerator = "cpu"});
      torch::nn::Linear model(32, 2);
      torch::optim::SGD torch_optimizer(model->parameters(), 0.1);
      auto [net, optimizer] = fabric.setup(model, torch_optimizer);
      report("fabric-torch-optimizer", steps, [&, &net = net, &optimizer = optimizer] {
        optimizer.zero_grad();
        fabric.backward(net(x).sum());
        optimizer.step();
      });
    }
    if (mode == "first-step") {
      levin::Fabric fabric({.accelerator = "cpu"});
      torch::nn::Linear model(32, 2);
      auto [net, optimizer] = fabric.setup(model, levin::optim::SGD(model->parameters(), {.lr = 0.1}));
      fabric.backward(net(x).sum());
      optimizer.step();
    }
  });
}
