// The cost of one tiny training step: Linear(32, 2), SGD, batch 1; plain LibTorch beside Fabric.
//   step_overhead [--mode plain|fabric|all] [--steps N]
#include <chrono>
#include <fstream>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/levin.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Microseconds of one step: the best of several rounds, since other programs on the machine only ever make a round
// slower.
template <class Step>
double microseconds(int64_t steps, Step&& step) {
  for (int i = 0; i < 100; ++i) step();
  double best = 1e9;
  for (int round = 0; round < 10; ++round) {
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps / 10; ++i) step();
    best = std::min(best, seconds_since(start) / (steps / 10));
  }
  return best * 1e6;
}

// Since the process was started, in hundredths of a second as the kernel counts.
double seconds_since_process_start() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string word;
  for (int i = 0; i < 22; ++i) stat >> word;
  double up = 0;
  uptime >> up;
  return up - std::stod(word) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto mode = args.get("mode", "all");
    const auto steps = args.get("steps", 20000);
    args.check_all_used();
    at::set_num_threads(1);
    torch::manual_seed(0);
    const auto x = torch::randn({1, 32});

    levin::Fabric fabric({.accelerator = "cpu"});
    torch::nn::Linear model(32, 2);
    auto [net, optimizer] = fabric.setup(model, levin::optim::SGD(model->parameters(), {.lr = 0.1}));
    auto with_fabric = [&, &net = net, &optimizer = optimizer] {
      optimizer.zero_grad();
      fabric.backward(net(x).sum());
      optimizer.step();
    };
    with_fabric();
    const double first_step = seconds_since_process_start();

    torch::nn::Linear plain_model(32, 2);
    torch::optim::SGD plain_optimizer(plain_model->parameters(), 0.1);
    auto plain = [&] {
      plain_optimizer.zero_grad();
      plain_model(x).sum().backward();
      plain_optimizer.step();
    };

    // One way alone, for counting instructions: run it with two numbers of steps and take the difference.
    if (mode == "plain" || mode == "fabric") {
      for (int64_t i = 0; i < steps; ++i) mode == "plain" ? plain() : with_fabric();
      return;
    }
    torch::nn::Linear torch_model(32, 2);
    torch::optim::SGD torch_optimizer(torch_model->parameters(), 0.1);
    auto [torch_net, adapted] = fabric.setup(torch_model, torch_optimizer);
    auto with_torch_optimizer = [&, &torch_net = torch_net, &adapted = adapted] {
      adapted.zero_grad();
      fabric.backward(torch_net(x).sum());
      adapted.step();
    };
    const double plain_us = microseconds(steps, plain);
    const double fabric_us = microseconds(steps, with_fabric);
    const double adapted_us = microseconds(steps, with_torch_optimizer);
    // limit 0.909: at most 1.10 times the plain loop.
    fmt::print(
        "{{\"case\": \"tiny step: Fabric, plain LibTorch\", \"value\": {:.3f}, \"peer\": {:.3f}, \"unit\": \"us\", "
        "\"limit\": 0.909}}\n",
        fabric_us, plain_us);
    fmt::print(
        "{{\"case\": \"tiny step: Fabric with torch's SGD, plain LibTorch\", \"value\": {:.3f}, \"peer\": {:.3f}, "
        "\"unit\": \"us\", \"limit\": 0.909}}\n",
        adapted_us, plain_us);
    fmt::print(
        "{{\"case\": \"tiny step: Fabric, Lightning Fabric\", \"value\": {:.3f}, \"unit\": \"us\", \"limit\": 6}}\n",
        fabric_us);
    fmt::print(
        "{{\"case\": \"start to first step (peer: the limit)\", \"value\": {:.2f}, \"peer\": 1.0, \"unit\": \"s\", "
        "\"limit\": 1}}\n",
        first_step);
    fmt::print("{{\"case\": \"start to first step\", \"value\": {:.2f}, \"unit\": \"s\", \"limit\": 6}}\n", first_step);
  });
}
