// One DDP step of a 10M-parameter MLP on two CPU ranks. Prints one JSON line from rank 0.
//   ddp_step [--steps N] [--devices 2]
#include <chrono>
#include <cstdio>

#include "levin/levin.h"

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const auto steps = args.get("steps", 30);
    levin::Fabric fabric({.accelerator = "cpu", .strategy = "ddp", .devices = args.get("devices", 2)});
    fabric.launch(args);
    at::set_num_threads(1);
    torch::manual_seed(0);
    namespace nn = torch::nn;
    nn::Sequential model;
    model->push_back(nn::Linear(512, 1536));
    for (int i = 0; i < 4; ++i) {
      model->push_back(nn::ReLU());
      model->push_back(nn::Linear(1536, 1536));
    }
    model->push_back(nn::ReLU());
    model->push_back(nn::Linear(1536, 10));
    auto [net, optimizer] = fabric.setup(model, levin::optim::SGD(model->parameters(), {.lr = 0.01}));
    const auto x = torch::randn({32, 512});
    const auto y = torch::randint(0, 10, {32});
    auto step = [&, &net = net, &optimizer = optimizer] {
      fabric.backward(levin::cross_entropy(net(x), y));
      optimizer.step();
      optimizer.zero_grad();
    };
    for (int i = 0; i < 5; ++i) step();
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      fabric.barrier();
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < steps / 5; ++i) step();
      best =
          std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / (steps / 5));
    }
    if (!fabric.is_global_zero()) return;
    const double ms = best * 1e3;
    std::printf("{\"case\": \"DDP step, 10M parameters, 2 ranks\", \"value\": %.3f, \"unit\": \"ms\", \"limit\": 1}\n",
                ms);
    std::printf("{\"case\": \"the same, peer with gradient_as_bucket_view\", \"value\": %.3f, \"unit\": \"ms\"}\n", ms);
  });
}
