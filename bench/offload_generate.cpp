// Decode steps of a model that does not fit the GPU, streamed from pinned host memory under a budget: tokens per
// second, and the fraction of the link that is in use, which a copy of 1 GiB in the same process measures. Weights are
// random and made in the process. Blocks of bloom_176b lie in the memory of one: 352 GB go over the link a pass, 12 GB
// are in host memory.
//
//   offload_generate [--model opt_30b|bloom_176b|tiny] [--gpu-budget 8GiB] [--batches 1,8,32,64] [--device cuda]
//                    [--prompt 16] [--tokens 3] [--dtype bfloat16] [--offload-folder DIR]
//
// The budget of bloom_176b is 24GiB by default. On the CPU what does not fit comes from --offload-folder.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/main.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/placed_model.h"
#include "levin/generate/stream_cost.h"
#include "levin/models/language/architecture.h"
#include "levin/nn/deferred_init.h"

namespace {

using namespace levin;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct BenchModel {
  std::string name, budget, config;
  bool shares_blocks = false;
};

const std::vector<BenchModel> kModels{
    {"opt_30b", "8GiB", R"({"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 50272,
       "hidden_size": 7168, "num_hidden_layers": 48, "num_attention_heads": 56, "ffn_dim": 28672,
       "max_position_embeddings": 2048, "word_embed_proj_dim": 7168, "do_layer_norm_before": true,
       "activation_function": "relu"})"},
    {"bloom_176b", "24GiB", R"({"model_type": "bloom", "architectures": ["BloomForCausalLM"], "vocab_size": 250880,
       "hidden_size": 14336, "n_layer": 70, "n_head": 112, "layer_norm_epsilon": 1e-5})",
     true},
    {"tiny", "200MiB", R"({"model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 512,
       "hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "ffn_dim": 1024,
       "max_position_embeddings": 256, "word_embed_proj_dim": 256, "do_layer_norm_before": true,
       "activation_function": "relu"})"}};

const BenchModel& bench_model(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& model : kModels) {
    if (model.name == name) return model;
    known.push_back(model.name);
  }
  fail_unknown("offload_generate", "model", name, known);
}

int64_t bytes_of(const std::string& text) {
  size_t end = 0;
  const auto number = std::stod(text, &end);
  const auto unit = text.substr(end);
  const double factor = unit == "GiB" ? 1 << 30 : unit == "MiB" ? 1 << 20 : unit == "GB" ? 1e9 : unit == "MB" ? 1e6 : 0;
  LEVIN_CHECK(factor > 0 && number > 0, "[offload_generate] \"", text, "\" is not a number of bytes (8GiB)");
  return static_cast<int64_t>(number * factor);
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> result;
  for (size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(',', at), text.size());
    result.push_back(std::stoll(text.substr(at, end - at)));
    at = end + 1;
  }
  return result;
}

/// A model without data; its blocks are in the memory of the first where they share it.
models::LanguageModel deferred_model(const BenchModel& asked, at::ScalarType dtype, c10::Device device) {
  const models::ModelConfig config(asked.config, asked.name);
  const auto& architecture = models::architecture_of(config);
  auto options = architecture.decoder(config);
  options.tied_head = true;
  auto decoder =
      init_module([&] { return models::Decoder(options); }, {.device = device, .dtype = dtype, .deferred = true});
  decoder->eval();
  if (asked.shares_blocks) {
    const auto first = decoder->blocks[0]->parameters();
    for (size_t i = 1; i < decoder->blocks.size(); ++i) {
      auto own = decoder->blocks[i]->parameters();
      for (size_t j = 0; j < own.size(); ++j) own[j].set_data(first[j].data());
    }
  }
  return {.model_type = std::string(architecture.model_type), .decoder = decoder, .config = config, .dtype = dtype};
}

struct OffloadBench {
  models::LanguageModel model;
  WeightPlacement placement;
  c10::Device device;
  DecodeSizes sizes;
  int64_t prompt, steps;
  double link;

  void measure(int64_t rows) {
    levin::detail::DecodeBatch batch(model.decoder,
                                     {.rows = rows, .capacity = sizes.capacity, .prefill_chunk = sizes.prefill_chunk});
    const std::vector<int64_t> ids(static_cast<size_t>(prompt), 17);
    const std::vector<const std::vector<int64_t>*> prompts(static_cast<size_t>(rows), &ids);
    auto logits = batch.append(prompts);
    logits.argmax(1).cpu();
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      logits = batch.decode(std::vector<int64_t>(static_cast<size_t>(rows), 5 + i % 100));
      logits.argmax(1).cpu();  // what a greedy loop waits for
    }
    const auto seconds = seconds_since(start) / static_cast<double>(steps);
    const auto rate = static_cast<double>(placement.streamed_bytes()) / seconds;
    const auto peak = accelerator_of(device).memory(device).peak_reserved;
    std::printf("| %5lld | %8.3f | %8.2f | %6.1f | %5.1f %% | %8s |\n", static_cast<long long>(rows), seconds,
                static_cast<double>(rows) / seconds, rate / 1e9, link > 0 ? 100 * rate / link : 0.0,
                format_bytes(static_cast<double>(peak)).c_str());
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return run_main(argc, argv, [](Args& args) {
    const auto& asked = bench_model(args.get("model", "opt_30b"));
    const auto budget = bytes_of(args.get("gpu-budget", asked.budget));
    const auto batches = numbers(args.get("batches", "1,8,32,64"));
    const c10::Device device(args.get("device", "cuda:0"));
    const auto prompt = args.get("prompt", 16), steps = args.get("tokens", 3);
    const auto dtype = args.get("dtype", "bfloat16") == "float32" ? at::kFloat : at::kBFloat16;
    const auto folder = args.get("offload-folder", "");
    args.check_all_used();
    const c10::AutoGradMode no_grad(false);
    const auto& kind = accelerator_of(device);
    LEVIN_CHECK(kind.device_count() > 0, "[offload_generate] ", kind.why_unavailable());
    const auto link = measured_link(device, int64_t{1} << 30);
    kind.empty_cache(device);
    if (!device.is_cpu()) kind.limit_memory(device, budget);

    auto model = deferred_model(asked, dtype, device);
    const DecodeSizes sizes{.rows = *std::max_element(batches.begin(), batches.end()),
                            .capacity = prompt + steps + 1,
                            .prefill_chunk = 512};
    const PlacementOptions options{
        .device = device,
        .max_memory = memory_budgets(
            device, {{device.is_cpu() ? "cpu" : fmt::format("cuda:{}", std::max<int>(device.index(), 0)), budget}}),
        .workspace = decode_workspace(model, sizes, device)};
    const auto placement = place_units(placement_units(model.module()), options);
    std::printf("%s\n%s\n", placement.describe().c_str(),
                stream_cost(model, placement, options, sizes, link, expected_flops(device, dtype))
                    .describe(sizes.rows)
                    .c_str());
    std::fflush(stdout);
    const auto start = Clock::now();
    place_model(model.decoder, placement, {.offload_folder = folder});
    std::printf("weights made and placed in %.1f s; the link copies %.1f GB/s\n", seconds_since(start), link / 1e9);
    std::printf("| batch | s a pass | tokens/s |   GB/s | of link | memory |\n|---|---|---|---|---|---|\n");
    kind.reset_peak_memory(device);
    OffloadBench bench{model, placement, device, sizes, prompt, steps, link};
    for (const auto rows : batches) bench.measure(rows);
  });
}
