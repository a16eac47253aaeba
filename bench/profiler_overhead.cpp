// What recording costs: a training step of 24 small linear layers, plain and recorded by Kineto; the other half is
// bench/peers/profiler_overhead.py, and bench/profiler_overhead.py runs both in turns.
//   profiler_overhead [--device cpu|cuda] [--steps 40] [--rounds 7] [--shapes 0|1] [--units 0|1] [--folder DIR]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "levin/devices/accelerator.h"
#include "levin/levin.h"
#include "levin/profilers/profile.h"

namespace {

using Clock = std::chrono::steady_clock;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t n) : fc(register_module("fc", torch::nn::Linear(n, n))) {}
  at::Tensor forward(const at::Tensor& x) { return fc(x).relu(); }
  torch::nn::Linear fc;
};
LEVIN_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t n) {
    for (int i = 0; i < 24; ++i) blocks.push_back(register_module("block" + std::to_string(i), Block(n)));
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<Block> blocks;
};
LEVIN_MODULE(Net);

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double milliseconds(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const c10::Device device(args.get("device", "cpu"));
    const auto steps = args.get("steps", 40), rounds = args.get("rounds", 7);
    const bool shapes = args.get("shapes", 0) != 0, units = args.get("units", 0) != 0;
    const std::filesystem::path folder = args.get("folder", "/tmp/levin_profiler_overhead");
    args.check_all_used();
    at::set_num_threads(1);
    torch::manual_seed(0);
    constexpr int64_t kWidth = 256;
    Net model(kWidth);
    model->to(device);
    levin::optim::SGD optimizer(model->parameters(), {.lr = 0.01, .momentum = 0.9});
    const auto x = torch::randn({32, kWidth}, device);
    const auto step = [&] {
      model(x).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    const auto wait = [&] { levin::accelerator_of(device).synchronize(device); };
    for (int i = 0; i < 20; ++i) step();
    std::vector<double> plain, recorded, ended;
    for (int64_t round = 0; round < rounds; ++round) {
      wait();
      auto start = Clock::now();
      for (int64_t i = 0; i < steps; ++i) step();
      wait();
      plain.push_back(milliseconds(start, Clock::now()) / static_cast<double>(steps));

      levin::profilers::Profile profile(
          {.schedule = std::nullopt, .record_shapes = shapes, .with_modules = units, .dirpath = folder, .gzip = false});
      profile.watch(*model);
      profile.start();
      start = Clock::now();
      for (int64_t i = 0; i < steps; ++i) step();
      wait();
      const auto end = Clock::now();
      profile.stop();
      recorded.push_back(milliseconds(start, end) / static_cast<double>(steps));
      ended.push_back(milliseconds(end, Clock::now()) / static_cast<double>(steps));
    }
    std::filesystem::remove_all(folder);
    std::printf("{\"plain_ms\": %.4f, \"recorded_ms\": %.4f, \"end_ms\": %.4f}\n", median(plain), median(recorded),
                median(ended));
  });
}
