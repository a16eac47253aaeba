// Quantized linear layers with few rows, in the sizes of Llama-7B, beside torch's linear of the same rows.
//   quantized_linear [--device cuda|cpu] [--rounds N]
#include <chrono>

#include <fmt/format.h>

#include "levin/devices/graphs.h"
#include "levin/kernels/quantized/quantized_weight.h"
#include "levin/levin.h"

namespace {

using at::Tensor;
using Clock = std::chrono::steady_clock;

/// As many weights as do not fit any cache; of one call after the other each uses another.
int64_t copies_for(int64_t bytes, bool cuda) {
  return std::max<int64_t>(2, (cuda ? 300'000'000 : 60'000'000) / bytes + 1);
}

/// Microseconds of one call of `call(i)`, i from 0 on; on CUDA calls are captured, so that launches cost nothing.
double microseconds(const std::function<Tensor(int64_t)>& call, int64_t calls, int64_t rounds, c10::Device device) {
  std::shared_ptr<levin::detail::DeviceGraph> graph;
  Tensor last = call(0);
  const auto all = [&] {
    for (int64_t i = 0; i < calls; ++i) last = call(i);
  };
  if (device.is_cuda()) graph = levin::detail::cuda_graphs(device)->capture(all);
  double best = 1e9;
  for (int64_t round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    if (graph) {
      graph->replay();
      (void)last.flatten()[0].item<float>();  // waits
    } else {
      all();
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (round > 0) best = std::min(best, seconds);
  }
  return best * 1e6 / static_cast<double>(calls);
}

constexpr int64_t kRows[] = {1, 4, 8};

void measure(int64_t out, int64_t in, int64_t rounds, c10::Device device) {
  const bool cuda = device.is_cuda();
  const auto dtype = cuda ? at::kHalf : at::kFloat;
  const auto weight = torch::randn({out, in}, at::TensorOptions(device).dtype(dtype)) * 0.02;
  const auto bytes = static_cast<double>(weight.nbytes());
  std::vector<double> torchs;
  const auto print = [&](const char* what, int64_t rows, double time, double moved, double peer) {
    fmt::print("{:>6} x {:<6} {} rows  {:<12} {:9.2f} us {:7.1f} GB/s", out, in, rows, what, time, moved / time * 1e-3);
    if (peer > 0) fmt::print("  {:.2f} times torch", peer / time);
    fmt::print("\n");
    std::fflush(stdout);
  };
  // Calls go through all copies, each as often.
  const auto measured = [&](int64_t copies, const std::function<Tensor(size_t)>& call) {
    return microseconds([&](int64_t i) { return call(static_cast<size_t>(i % copies)); },
                        cuda ? std::max<int64_t>(64, copies) : copies, rounds, device);
  };
  {
    const auto copies = copies_for(static_cast<int64_t>(weight.nbytes()), cuda);
    std::vector<Tensor> plain;
    for (int64_t i = 0; i < copies; ++i) plain.push_back(weight.clone());
    for (const auto rows : kRows) {
      const auto x = torch::randn({rows, in}, weight.options());
      torchs.push_back(measured(copies, [&](size_t i) { return at::linear(x, plain[i]); }));
      print(cuda ? "torch half" : "torch float", rows, torchs.back(), bytes, 0);
    }
  }
  for (const char* word : {"int8-weights", "fp8", "int4", "nf4", "nf4-double"}) {
    const auto packed = levin::kernels::quantize(weight, levin::kernels::quantization_of("bench", word));
    const auto copies = copies_for(packed.nbytes(), cuda);
    std::vector<levin::kernels::QuantizedWeight> all(static_cast<size_t>(copies), packed);
    for (auto& each : all) each.codes = packed.codes.clone(), each.scales = packed.scales.clone();
    for (size_t r = 0; r < std::size(kRows); ++r) {
      const auto x = torch::randn({kRows[r], in}, weight.options());
      const auto time = measured(copies, [&](size_t i) { return levin::kernels::quantized_linear(x, all[i]); });
      print(word, kRows[r], time, static_cast<double>(packed.nbytes()), torchs[r]);
    }
    const auto time = measured(copies, [&](size_t i) { return levin::kernels::dequantize(all[i], dtype); });
    print("  as numbers", 0, time, static_cast<double>(packed.nbytes()) + bytes, 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, [](levin::Args& args) {
    const c10::Device device(args.get("device", torch::cuda::is_available() ? "cuda" : "cpu"));
    const auto rounds = args.get("rounds", 4);
    args.check_all_used();
    const at::NoGradGuard no_grad;
    for (const auto& [out, in] : {std::pair<int64_t, int64_t>{4096, 4096}, {11008, 4096}, {4096, 11008}})
      measure(out, in, rounds, device.is_cuda() ? c10::Device(at::kCUDA, 0) : device);
  });
}
