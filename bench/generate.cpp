// Decode steps of a language model with random weights: milliseconds a token (median and 95 of 100), tokens per second,
// and the bytes that a step reads beside what the memory gives. Rows of one process: run again with
// LEVIN_DECODE_KERNELS=1 for the fused kernels.
//
//   generate [--config FILE.json] [--device cuda] [--dtype bfloat16] [--prompt 512] [--tokens 128] [--batches 1,8,32]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <c10/core/GradMode.h>

#include "levin/core/files.h"
#include "levin/core/main.h"
#include "levin/devices/accelerator.h"
#include "levin/generate/decode_batch.h"
#include "levin/models/folder.h"

namespace {

using namespace levin;
using Clock = std::chrono::steady_clock;

// The sizes of Llama 3.1 8B.
constexpr const char* kLlama8b = R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256,
  "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "intermediate_size": 14336, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu",
  "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "tie_word_embeddings": false})";

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct DecodeBench {
  models::LanguageModel model;
  int64_t prompt, tokens;
  c10::Device device;

  void synchronize() const { accelerator_of(device).synchronize(device); }

  /// All weights but the table of the embedding, of which a step reads a row.
  double weight_bytes() const {
    double bytes = 0;
    for (const auto& parameter : model.decoder->parameters()) bytes += static_cast<double>(parameter.nbytes());
    const auto& table = model.decoder->tokens->weight;
    return model.body().tied_head ? bytes : bytes - static_cast<double>(table.nbytes());
  }

  void measure(int64_t rows, bool graphs) const {
    levin::detail::DecodeBatch batch(model.decoder, {.rows = rows, .capacity = prompt + tokens + 1, .graphs = graphs});
    const std::vector<int64_t> ids(static_cast<size_t>(prompt), 17);
    const std::vector<const std::vector<int64_t>*> prompts(static_cast<size_t>(rows), &ids);
    synchronize();
    auto start = Clock::now();
    auto logits = batch.append(prompts);
    synchronize();
    const auto prefill = ms_since(start);
    std::vector<double> times;
    for (int64_t i = 0; i < tokens; ++i) {
      start = Clock::now();
      logits = batch.decode(std::vector<int64_t>(static_cast<size_t>(rows), 5 + i % 100));
      logits.argmax(1).cpu();  // what a greedy loop waits for
      times.push_back(ms_since(start));
    }
    times.erase(times.begin(), times.begin() + std::min<int64_t>(tokens / 2, 8));  // captures
    std::sort(times.begin(), times.end());
    const auto at = [&](double share) {
      return times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))];
    };
    const auto& cache = batch.cache();
    const auto slot = static_cast<double>(cache.nbytes()) / static_cast<double>(cache.rows() * cache.capacity());
    const auto read = weight_bytes() + slot * static_cast<double>(rows * (prompt + tokens / 2));
    std::printf(
        "batch %-3lld graphs %d kernels %s: %.3f ms a step (p95 %.3f), %.1f tok/s, %.0f GB/s; prefill %.0f tok/s\n",
        static_cast<long long>(rows), graphs, std::getenv("LEVIN_DECODE_KERNELS") ? "1" : "0", at(0.5), at(0.95),
        1e3 * static_cast<double>(rows) / at(0.5), read / at(0.5) / 1e6,
        1e3 * static_cast<double>(rows * prompt) / prefill);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return run_main(argc, argv, [](Args& args) {
    const auto file = args.get("config", ""), device = args.get("device", "cuda"),
               batches = args.get("batches", "1,8,32");
    const auto prompt = args.get("prompt", 512), tokens = args.get("tokens", 128);
    const bool narrow = args.get("dtype", "bfloat16") != "float32";
    args.check_all_used();
    const auto config = file.empty() ? std::string(kLlama8b) : read_file(file);
    const c10::AutoGradMode no_grad(false);
    const c10::Device where(device);
    DecodeBench bench{models::new_model(config, {.dtype = narrow ? at::kBFloat16 : at::kFloat, .device = where}),
                      prompt, tokens, where};
    bench.model.decoder->eval();
    for (size_t at = 0; at < batches.size();) {
      const auto end = std::min(batches.find(',', at), batches.size());
      for (const bool graphs : {false, true})
        if (!graphs || where.is_cuda()) bench.measure(std::stoll(batches.substr(at, end - at)), graphs);
      at = end + 1;
    }
  });
}
