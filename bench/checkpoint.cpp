// Saving and loading a training state: ViT-B/16 and Adam after a step, 1.04 GB, through Fabric. Both sides end a save
// when the bytes are on the disk. A save replaces the checkpoint before it, as those of a training run do; loads find
// the files in the page cache.
//   checkpoint [--folder DIR] [--repeat 5]
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "levin/levin.h"

namespace {

namespace fs = std::filesystem;

template <class F>
double median_seconds(int64_t repeat, F&& f) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeat; ++i) {
    const auto start = Clock::now();
    f();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::ranges::sort(seconds);
  return seconds[seconds.size() / 2];
}

/// No limit for a save: a disk that others use, too, varies by more than what is compared.
void report(const char* what, double seconds, const char* limit) {
  fmt::print("{{\"case\": \"checkpoint: {}\", \"value\": {:.4f}, \"unit\": \"s\"{}}}\n", what, seconds, limit);
}

void bench(levin::Args& args) {
  const fs::path folder = args.get("folder", "build/bench_checkpoint");
  const auto repeat = args.get("repeat", 5);
  args.check_all_used();
  LEVIN_CHECK(repeat > 0, "[bench] repeat must be 1 or more, got ", repeat);
  fs::create_directories(folder);
  const auto path = (folder / "last").string();

  levin::Fabric fabric({.devices = 1});
  auto model = fabric.init_module([] { return levin::models::vit_b_16(); });
  auto [net, optimizer] = fabric.setup(model, levin::optim::Adam(model->parameters()));
  fabric.backward(net(torch::randn({1, 3, 224, 224}, fabric.device())).square().mean());
  optimizer.step();
  optimizer.zero_grad();

  const levin::State state{{"model", net}, {"optimizer", optimizer}};
  const auto before = model->parameters()[0].detach().clone();
  fabric.save(path, state);
  report("save", median_seconds(repeat, [&] { fabric.save(path, state); }), "");
  report("load", median_seconds(repeat, [&] { fabric.load(path, state); }), ", \"limit\": 1.0");
  LEVIN_CHECK(torch::equal(model->parameters()[0], before), "[bench] another value came back");
  fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, bench);
}
