// A decoder of 1.3 billion parameters over a mesh of ranks that share the GPUs that are there, over Gloo: losses beside
// those of one rank, time and peak memory of a rank. What is shown is that it is the same training; ranks that share a
// GPU and send through the host are slow.
//   model_parallel --write one.txt                           # one rank
//   model_parallel --tp 2 --beside one.txt
//   model_parallel --dp-shard 2 --tp 2 [--sequence-parallel] --beside one.txt
//   model_parallel --pp 2 --beside one.txt; --cp 2; --pp 2 --dp-shard 2; ...
//   model_parallel --experts 8 --write experts.txt           # a mixture of experts of the same size
//   model_parallel --experts 8 --dp-shard 2 --ep 2 --beside experts.txt
//   options: [--dp-replicate 1] [--steps 4] [--batch 4 (of all ranks)] [--seq 512] [--precision bf16-mixed]
//            [--checkpointing] [--tiny (a small model on whatever device there is)]
#include <chrono>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>

#include "levin/levin.h"
#include "levin/strategies/options.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Asked {
  levin::ParallelSizes mesh;
  bool tiny = false, sequence = false, checkpointing = false;
  int64_t steps = 4, batch = 4, length = 512, experts = 0;
  std::string precision, write, beside;

  explicit Asked(levin::Args& args) {
    mesh.pp = static_cast<int>(args.get("pp", 1));
    mesh.dp_replicate = static_cast<int>(args.get("dp-replicate", 1));
    mesh.dp_shard = static_cast<int>(args.get("dp-shard", 1));
    mesh.cp = static_cast<int>(args.get("cp", 1));
    mesh.tp = static_cast<int>(args.get("tp", 1));
    mesh.ep = static_cast<int>(args.get("ep", 1));
    experts = args.get("experts", 0);
    tiny = args.has("tiny"), sequence = args.has("sequence-parallel"), checkpointing = args.has("checkpointing");
    steps = args.get("steps", 4), batch = args.get("batch", 4), length = args.get("seq", tiny ? 32 : 512);
    precision = args.get("precision", "bf16-mixed");
    write = args.get("write", ""), beside = args.get("beside", "");
    args.check_all_used();
    LEVIN_CHECK(steps >= 2, "[model_parallel] --steps ", steps, " must be 2 or more: the first one is not timed");
  }

  levin::models::DecoderOptions model() const {
    levin::models::DecoderOptions options{
        .vocab_size = 50304, .max_positions = 2048, .num_layers = 24, .num_heads = 16, .hidden_dim = 2048};
    if (experts > 0) options.num_layers = 12, options.hidden_dim = 1024;
    if (tiny) options = {.vocab_size = 512, .max_positions = 64, .num_layers = 4, .num_heads = 4, .hidden_dim = 64};
    if (experts == 0) return options;
    options.experts = {.count = experts, .per_token = 2};
    options.activation = "silu_gated";
    options.mlp_bias = false;
    return options;
  }

  levin::StrategyChoice strategy() const {
    const auto blocks = levin::policy::by_class<levin::models::DecoderBlock>();
    levin::FsdpOptions fsdp{.auto_wrap_policy = blocks, .process_group_backend = "gloo"};
    if (checkpointing) fsdp.activation_checkpointing_policy = blocks;
    return levin::ModelParallelOptions{.mesh = mesh, .sequence_parallel = sequence, .fsdp = fsdp};
  }
};

std::vector<double> numbers_of(const std::string& path) {
  std::vector<double> numbers;
  std::ifstream in(path);
  LEVIN_CHECK(in, "[model_parallel] \"", path, "\" cannot be read");
  for (double number; in >> number;) numbers.push_back(number);
  return numbers;
}

void train(levin::Args& args) {
  const Asked asked(args);
  const bool gpu = levin::detail::cuda_accelerator().device_count() > 0;
  if (!gpu && !asked.tiny) {
    std::printf("{\"skip\": \"no GPU\"}\n");
    return;
  }
  levin::Fabric fabric({.accelerator = gpu ? "cuda" : "cpu",
                        .strategy = asked.strategy(),
                        .devices = asked.mesh.product(),
                        .precision = asked.precision});
  fabric.launch(args);
  const auto& device = fabric.accelerator();
  const auto where = fabric.device();
  torch::manual_seed(0);
  const auto options = asked.model();
  auto model = fabric.init_module([&] { return levin::models::decoder(options); }, {.meta = true});
  auto [net, optimizer] = fabric.setup(model, levin::optim::AdamW(levin::unique_parameters(*model), {.lr = 1e-4}));
  net->train();
  const auto expected = asked.beside.empty() ? std::vector<double>() : numbers_of(asked.beside);
  const auto place = fabric.strategy().data_place();
  std::vector<double> losses;
  double best = 1e9, peak = 0;
  for (int64_t i = 0; i < asked.steps; ++i) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(i));
    const auto all = torch::randint(0, options.vocab_size, {asked.batch, asked.length}, generator, at::kLong);
    const auto tokens = all.chunk(place.size, 0)[static_cast<size_t>(place.rank)].to(where);
    device.reset_peak_memory(where);
    const auto start = Clock::now();
    levin::Batch batch{{"tokens", tokens}};
    const auto loss = fabric.forward_backward(net, batch, [&net = net](levin::Batch& part) {
      return net(part["tokens"], levin::models::next_tokens(part["tokens"]));
    });
    fabric.clip_gradients(optimizer, {.max_norm = 1.0});
    optimizer.step();
    optimizer.zero_grad();
    const auto mean = fabric.all_reduce(loss.detach()).item<double>();
    const auto seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (i > 0) best = std::min(best, seconds);
    peak = std::max(peak, static_cast<double>(device.memory(where).peak_allocated));
    losses.push_back(mean);
    if (!fabric.is_global_zero()) continue;
    const auto at = static_cast<size_t>(i);
    std::printf("step %ld: loss %.5f%s, %.0f ms, peak %.2f GB\n", static_cast<long>(i), mean,
                at < expected.size() ? fmt::format(" (one rank {:.5f})", expected[at]).c_str() : "", seconds * 1e3,
                peak / 1e9);
    std::fflush(stdout);
  }
  if (!fabric.is_global_zero()) return;
  if (!asked.write.empty()) {
    std::ofstream out(asked.write);
    for (const auto loss : losses) out << fmt::format("{:.6f}\n", loss);
  }
  double worst = 0;
  for (size_t i = 0; i < std::min(losses.size(), expected.size()); ++i)
    worst = std::max(worst, std::abs(losses[i] - expected[i]));
  const auto label =
      fmt::format("{} decoder{}, {}{}", asked.tiny ? "tiny" : "1.3B", asked.experts > 0 ? " with experts" : "",
                  asked.mesh.text(), asked.sequence ? ", sequence parallel" : "");
  std::printf("{\"case\": \"%s, step\", \"value\": %.1f, \"unit\": \"ms\"}\n", label.c_str(), best * 1e3);
  std::printf("{\"case\": \"%s, peak of rank 0\", \"value\": %.3f, \"unit\": \"GB\"}\n", label.c_str(), peak / 1e9);
  if (!expected.empty())
    std::printf("{\"case\": \"%s, largest difference of a loss\", \"value\": %.5f, \"unit\": \"\"}\n", label.c_str(),
                worst);
}

}  // namespace

int main(int argc, char** argv) {
  return levin::run_main(argc, argv, train);
}
