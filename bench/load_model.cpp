// How fast a model folder in the page cache comes to its device, and how much host memory that takes, beside
// transformers (peers/load_model.py): the same folder, the same dtype.
//   load_model [--folder DIR] [--device cuda] [--dtype bfloat16] [--layers 32] [--repeat 3] [--chunk 4]
// Makes a Llama of the sizes of 7B (13 GB with 32 layers) in DIR when there is no config.json. /dev/shm is quick to
// write. Peak memory is VmHWM, reset before each opening, less what was resident then: anonymous and pinned memory
// (files are read, not mapped).
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "levin/core/main.h"
#include "levin/devices/accelerator.h"
#include "levin/io/weights/weights.h"
#include "levin/models/folder.h"
#include "levin/models/language/weight_plan.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// "VmHWM:   123456 kB" of /proc/self/status, in bytes.
double status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with(field)) return 1024 * std::stod(line.substr(field.size() + 1));
  return 0;
}

void report(const char* name, double value, const char* unit, const char* better) {
  std::printf("{\"case\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"better\": \"%s\", \"limit\": 1.0}\n", name,
              value, unit, better);
  std::fflush(stdout);
}

void make_folder(const fs::path& folder, int64_t layers, c10::Device device) {
  const auto config = fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": 4096,
"intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32, "num_hidden_layers": {},
"max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "vocab_size": 32000}})",
      layers);
  const auto model = levin::models::new_model(config, {.device = device});
  const auto start = Clock::now();
  levin::models::save_model(model, folder);
  const auto bytes = static_cast<double>(levin::WeightFile(folder).bytes());
  std::printf("made %s: %.2f GB, saved at %.2f GB/s\n", folder.c_str(), bytes / 1e9,
              bytes / 1e9 / seconds_since(start));
}

void bench(levin::Args& args) {
  const fs::path folder = args.get("folder", "build/bench_model");
  const c10::Device device(args.get("device", "cuda"));
  const auto dtype = levin::dtype_from_name("load_model", args.get("dtype", "bfloat16"));
  const auto layers = args.get("layers", 32), repeat = args.get("repeat", 3);
  if (const auto chunk = args.get("chunk", 0)) levin::models::detail::chunk_of_read() = int64_t{chunk} << 20;
  args.check_all_used();
  const auto& accelerator = levin::accelerator_of(device);
  if (!fs::exists(folder / "config.json")) make_folder(folder, layers, device);
  accelerator.set_device(device);
  const auto bytes = static_cast<double>(levin::WeightFile(folder).bytes());
  double best = 0, most = 0;
  for (int64_t i = 0; i < repeat; ++i) {
    accelerator.empty_cache(device);
    std::ofstream("/proc/self/clear_refs") << "5";
    const auto before = status_bytes("VmRSS:");
    const auto start = Clock::now();
    const auto model = levin::models::open_model(folder, {.dtype = dtype, .device = device});
    accelerator.synchronize(device);
    const auto seconds = seconds_since(start);
    const auto peak = status_bytes("VmHWM:") - before;
    std::printf("opened %.2f GB in %.3f s, %.1f GB/s; host memory %.2f GB above what there was\n", bytes / 1e9, seconds,
                bytes / 1e9 / seconds, peak / 1e9);
    best = std::max(best, bytes / 1e9 / seconds);
    most = std::max(most, peak / 1e9);
  }
  std::printf("%d threads\n", at::get_num_threads());
  report("load", best, "GB/s", "higher");
  report("host memory", most, "GB", "lower");
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, bench);
}
