// ViT-L/16 on one GPU through Fabric: time of a step and peak memory, one JSON line per precision.
//   vit_gpu [--batch 64] [--steps 12] [--precision 32-true,16-mixed,...] [--model vit_l_16]
#include <chrono>
#include <cstdio>

#include "levin/levin.h"

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    if (levin::detail::cuda_accelerator().device_count() == 0) {
      std::printf("{\"skip\": \"no GPU\"}\n");
      return;
    }
    const auto batch = args.get("batch", 64);
    const auto steps = args.get("steps", 12);
    const auto list = args.get("precision", "32-true,16-mixed,bf16-mixed,bf16-true");
    for (size_t begin = 0; begin < list.size();) {
      const auto comma = std::min(list.find(',', begin), list.size());
      const auto precision = list.substr(begin, comma - begin);
      begin = comma + 1;
      levin::Fabric fabric({.accelerator = "cuda", .devices = 1, .precision = precision});
      fabric.launch();
      torch::manual_seed(0);
      auto model = levin::models::vit_l_16({.num_classes = 10});
      auto [net, optimizer] = fabric.setup(model, levin::optim::Adam(model->parameters(), {.lr = 5e-5}));
      net->train();
      const auto x = torch::randn({batch, 3, 224, 224}, fabric.device());
      const auto y = torch::randint(0, 10, {batch}, at::TensorOptions().device(fabric.device()).dtype(at::kLong));
      auto step = [&, &net = net, &optimizer = optimizer] {
        fabric.backward(levin::cross_entropy(net(x), y));
        optimizer.step();
        optimizer.zero_grad();
      };
      for (int i = 0; i < 4; ++i) step();
      const auto& device = fabric.accelerator();
      device.synchronize(fabric.device());
      device.reset_peak_memory(fabric.device());
      const auto start = std::chrono::steady_clock::now();
      for (int64_t i = 0; i < steps; ++i) step();
      device.synchronize(fabric.device());
      const double ms = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps * 1e3;
      const auto memory = device.memory(fabric.device());
      std::printf("{\"case\": \"ViT-L/16 %s batch %ld, step\", \"value\": %.2f, \"unit\": \"ms\", \"limit\": 1}\n",
                  precision.c_str(), static_cast<long>(batch), ms);
      std::printf(
          "{\"case\": \"ViT-L/16 %s batch %ld, peak memory\", \"value\": %.3f, \"unit\": \"GB\", \"limit\": 1}\n",
          precision.c_str(), static_cast<long>(batch), memory.peak_allocated / 1e9);
    }
  });
}
