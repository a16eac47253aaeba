// A decoder that does not fit the GPU, trained through host memory under a budget: time, loss and memory of each step,
// and how far the step is from what the machine's links and memories allow.
//   offload_decoder --model gpt_6_7b [--budget-gb 8] [--steps 4] [--strategy deepspeed_stage_3_offload|colossalai]
//                   [--batch 8] [--seq 1024] [--precision bf16-mixed] [--link-gb-s 55] [--step-after] [--plan] [--tiny]
// The host steps a block's part of the optimizer while the device is still in backward; --step-after: when it has
// ended.
// --plan: print what will be needed, and stop. --tiny: a small model on whatever device there is, to see that it runs.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "levin/devices/host_memory.h"
#include "levin/levin.h"
#include "levin/strategies/options.h"

namespace {

using Clock = std::chrono::steady_clock;
using levin::models::DecoderBlock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Of a decoder with AdamW: float32 masters and moments in host memory, 16 bits of everything that travels.
struct Plan {
  double parameters = 0;
  double master = 0, moments = 0, gradients = 0, copy = 0;
  double block = 0, embedding = 0, kept = 0;  // on the device: a gathered block, tokens and head, inputs of the blocks

  double host() const { return master + moments + gradients + copy; }
};

Plan plan_of(const levin::models::DecoderOptions& options, int64_t batch, int64_t length) {
  const auto model = levin::init_module([&] { return levin::models::decoder(options); }, {.deferred = true});
  const auto count = [](const torch::nn::Module& module) {
    double sum = 0;
    for (const auto& parameter : levin::unique_parameters(module)) sum += static_cast<double>(parameter.numel());
    return sum;
  };
  const auto n = count(*model);
  return {.parameters = n,
          .master = 4 * n,
          .moments = 8 * n,
          .gradients = 2 * n,
          .copy = 2 * n,
          .block = 2 * count(*model->blocks[0]),
          .embedding = 2 * static_cast<double>(options.vocab_size * options.hidden_dim),
          .kept = 2.0 * static_cast<double>(batch * length * options.hidden_dim * options.num_layers)};
}

void print_plan(const Plan& plan, double available) {
  std::printf("%s parameters\n", levin::format_count(plan.parameters).c_str());
  std::printf("host: masters %.1f + moments %.1f + gradients %.1f + 16-bit copy %.1f = %.1f GB, %.1f GB are free\n",
              plan.master / 1e9, plan.moments / 1e9, plan.gradients / 1e9, plan.copy / 1e9, plan.host() / 1e9,
              available / 1e9);
  std::printf("device: a block %.2f, the embedding %.2f, inputs of all blocks %.2f GB, and what a block computes\n",
              plan.block / 1e9, plan.embedding / 1e9, plan.kept / 1e9);
  std::fflush(stdout);
}

levin::StrategyChoice strategy_of(const std::string& name, int64_t budget, bool in_backward) {
  const auto blocks = levin::policy::by_class<DecoderBlock>();
  if (name == "deepspeed_stage_3_offload")
    return levin::ZeroOptions{.stage = 3,
                              .offload_optimizer = {.device = "cpu"},
                              .offload_param = {.device = "cpu"},
                              .auto_wrap_policy = blocks,
                              .activation_checkpointing_policy = blocks,
                              .optimizer_in_backward = in_backward};
  if (name == "colossalai")
    return levin::GeminiOptions{.memory_budget = budget,
                                .auto_wrap_policy = blocks,
                                .activation_checkpointing_policy = blocks,
                                .optimizer_in_backward = in_backward};
  const std::vector<std::string> known{"deepspeed_stage_3_offload", "colossalai"};
  levin::fail_unknown("offload_decoder", "strategy", name, known);
}

/// Bytes per second of the best of some copies.
double copy_rate(at::Tensor to, const at::Tensor& from, const levin::Accelerator& device, c10::Device where) {
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    device.synchronize(where);
    const auto start = Clock::now();
    to.copy_(from, /*non_blocking=*/true);
    device.synchronize(where);
    best = std::max(best, static_cast<double>(from.nbytes()) / seconds_since(start));
  }
  return best;
}

/// Bytes per second of a = b + 3 c with all cores, counted as STREAM does.
double triad_rate(int64_t elements) {
  const auto threads = at::get_num_threads();
  at::set_num_threads(static_cast<int>(std::thread::hardware_concurrency()));
  auto a = at::zeros({elements}, at::kFloat);
  const auto b = at::ones({elements}, at::kFloat), c = at::ones({elements}, at::kFloat);
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const auto start = Clock::now();
    at::add_out(a, b, c, 3);
    best = std::max(best, 3.0 * static_cast<double>(a.nbytes()) / seconds_since(start));
  }
  at::set_num_threads(threads);
  return best;
}

/// Floating point operations per second of matrix products in bfloat16.
double matmul_rate(int64_t size, const levin::Accelerator& device, c10::Device where) {
  const auto a = at::randn({size, size}, at::TensorOptions().device(where).dtype(at::kBFloat16));
  auto b = at::empty_like(a);
  at::mm_out(b, a, a);
  constexpr int kTimes = 10;
  device.synchronize(where);
  const auto start = Clock::now();
  for (int i = 0; i < kTimes; ++i) at::mm_out(b, a, a);
  device.synchronize(where);
  const auto n = static_cast<double>(size);
  return kTimes * 2 * n * n * n / seconds_since(start);
}

struct Rates {
  double to_device = 0, to_host = 0, triad = 0, matmul = 0;
};

Rates measure_rates(const levin::Accelerator& device, c10::Device where, bool tiny) {
  Rates rates;
  const int64_t bytes = tiny ? 1 << 22 : 1 << 29;
  const auto host = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(where.is_cuda())).zero_();
  const auto there = at::zeros({bytes}, at::TensorOptions().dtype(at::kByte).device(where));
  rates.to_device = copy_rate(there, host, device, where);
  rates.to_host = copy_rate(host, there, device, where);
  rates.triad = triad_rate(tiny ? 1 << 20 : 1 << 28);
  rates.matmul = matmul_rate(tiny ? 256 : 8192, device, where);
  return rates;
}

void figure(const std::string& name, double value, const char* unit, const char* better = nullptr) {
  std::printf("{\"case\": \"%s\", \"value\": %.3f, \"unit\": \"%s\"%s}\n", name.c_str(), value, unit,
              better ? fmt::format(", \"better\": \"{}\"", better).c_str() : "");
}

void train(levin::Args& args) {
  const bool tiny = args.has("tiny"), plan_only = args.has("plan"), in_backward = !args.has("step-after");
  const auto name = args.get("model", tiny ? "gpt2" : ""), strategy = args.get("strategy", "deepspeed_stage_3_offload");
  const auto budget_gb = args.get("budget-gb", 8.0), link = args.get("link-gb-s", 55.0);
  const auto steps = args.get("steps", 4), batch = args.get("batch", tiny ? 2 : 8);
  const auto length = args.get("seq", tiny ? 32 : 1024);
  const auto precision = args.get("precision", "bf16-mixed");
  args.check_all_used();
  LEVIN_CHECK(steps >= 2, "[offload_decoder] --steps ", steps, " must be 2 or more: the first one is not counted");
  if (name.empty()) {
    // A run of all benchmarks is no place for a hundred gigabytes of host memory.
    std::printf("{\"skip\": \"needs --model (gpt_6_7b: about 110 GB of host memory)\"}\n");
    return;
  }
  auto options = levin::models::decoder_options(name);
  if (tiny) options = {.vocab_size = 512, .max_positions = 64, .num_layers = 4, .num_heads = 4, .hidden_dim = 64};
  LEVIN_CHECK(length <= options.max_positions, "[offload_decoder] --seq ", length, " is more than the ",
              options.max_positions, " positions of ", name);
  const auto plan = plan_of(options, batch, length);
  const auto available = static_cast<double>(levin::available_host_memory().value_or(0));
  print_plan(plan, available);
  if (plan_only) return;
  if (!tiny && levin::detail::cuda_accelerator().device_count() == 0) {
    std::printf("{\"skip\": \"no GPU\"}\n");
    return;
  }
  LEVIN_CHECK(plan.host() < available, "[offload_decoder] ", name, " needs ", levin::format_bytes(plan.host()),
              " of host memory, and ", levin::format_bytes(available), " are free");

  const auto budget = static_cast<int64_t>(budget_gb * 1e9);
  const auto choice = strategy_of(strategy, budget, in_backward);
  levin::Fabric fabric(
      {.accelerator = tiny ? "auto" : "cuda", .strategy = choice, .devices = 1, .precision = precision});
  fabric.launch();
  const auto& device = fabric.accelerator();
  const auto where = fabric.device();
  const auto rates = measure_rates(device, where, tiny);
  device.empty_cache(where);
  device.limit_memory(where, budget);
  torch::manual_seed(0);
  auto start = Clock::now();
  auto model = fabric.init_module([&] { return levin::models::decoder(options); }, {.meta = true});
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(levin::unique_parameters(*model), {.lr = 1e-4}));
  net->train();
  std::printf("made in %.1f s: %s\n", seconds_since(start), fabric.plan().to_string().c_str());
  const auto tokens =
      torch::randint(0, options.vocab_size, {batch, length}, at::TensorOptions().device(where).dtype(at::kLong));
  const auto targets = levin::models::next_tokens(tokens);

  std::vector<double> times;
  double peak = 0;
  for (int64_t i = 0; i < steps; ++i) {
    device.reset_peak_memory(where);
    start = Clock::now();
    const auto loss = net(tokens, targets);
    fabric.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    const auto value = loss.item<double>();
    device.synchronize(where);
    const auto seconds = seconds_since(start);
    if (i > 0) times.push_back(seconds);
    const auto memory = device.memory(where);
    peak = std::max(peak, static_cast<double>(memory.peak_allocated));
    const auto resident = levin::detail::cpu_accelerator().memory(c10::kCPU).allocated;
    std::printf(
        "{\"step\": %ld, \"loss\": %.4f, \"ms\": %.1f, \"peak_gb\": %.3f, \"reserved_gb\": %.3f, "
        "\"host_gb\": %.1f, \"resident_gb\": %.1f}\n",
        static_cast<long>(i), value, seconds * 1e3, static_cast<double>(memory.peak_allocated) / 1e9,
        static_cast<double>(memory.peak_reserved) / 1e9,
        (available - static_cast<double>(levin::available_host_memory().value_or(0))) / 1e9,
        static_cast<double>(resident) / 1e9);
    std::fflush(stdout);
  }
  std::sort(times.begin(), times.end());
  const auto step = times[times.size() / 2];

  // Parameters come twice (forward, and backward with its recomputation) while gradients go once, the other way.
  const auto transfer = 2 * plan.copy / (link * 1e9);
  const auto compute = 8 * plan.parameters * static_cast<double>(batch * length) / rates.matmul;
  // AdamW reads master, moments and gradient and writes master, moments and 16-bit copy.
  const auto update = 28 * plan.parameters / rates.triad;
  const auto limit = std::max({transfer, compute, update});
  const auto label = fmt::format("{} {} {:g} GB", tiny ? "tiny" : name, strategy, budget_gb);
  figure("host to device", rates.to_device / 1e9, "GB/s", "higher");
  figure("device to host", rates.to_host / 1e9, "GB/s", "higher");
  figure("host triad", rates.triad / 1e9, "GB/s", "higher");
  figure("bf16 matrix product", rates.matmul / 1e12, "TFLOP/s", "higher");
  figure(label + ", step", step * 1e3, "ms");
  figure(label + ", tokens", static_cast<double>(batch * length) / step, "tokens/s", "higher");
  figure(label + ", peak memory", peak / 1e9, "GB");
  std::printf("limits of a step: transfer %.0f ms, compute %.0f ms, update %.0f ms\n", transfer * 1e3, compute * 1e3,
              update * 1e3);
  figure(label + ", step over its limit", step / limit, "times");
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
