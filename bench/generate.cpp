// Decode steps of a language model with random weights: milliseconds a token (median and 95 of 100), tokens per second,
// and the bytes that a step reads beside what the memory gives. On CUDA a token takes from when the one before it was
// on the host to when it is there, in the greedy loop of generate(). With LEVIN_DECODE_KERNELS=0 the fused kernels are
// left out.
//
//   generate [--config FILE.json | --folder MODEL] [--device cuda] [--dtype bfloat16] [--quantize WORD] [--prompt 512]
//            [--tokens 128] [--batches 1,8,32] [--cache-dtype auto] [--engine] [--rounds 3] [--threads N] [--wait]
//            [--timeline FILE]
//
// With --timeline every kernel of four steps goes to a file: when it began and how long it took, in microseconds.
// With --engine: tokens per second of as many requests as a batch has rows, which arrive together at an engine, beside
// one offline batch of generate().
//
// On the CPU one row is measured, and the memory, too: a triad of the same threads, best of ten. The best round counts
// there. With --wait every round waits for a line on stdin: bench/peers/generate.py lets transformers have turns in
// between.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <optional>
#include <set>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <c10/core/GradMode.h>

#include "bench/speed/kernels.h"
#include "levin/core/files.h"
#include "levin/core/main.h"
#include "levin/core/parallel.h"
#include "levin/devices/accelerator.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/engine.h"
#include "levin/generate/generated_row.h"
#include "levin/io/weights/weights.h"
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

/// GB/s of a[i] = b[i] + s * c[i] over arrays that no cache holds.
double triad() {
  constexpr int64_t kCount = 1 << 24;
  const auto b = at::ones({kCount}), c = at::ones({kCount});
  auto a = at::ones({kCount});
  auto best = std::numeric_limits<double>::infinity();
  for (int turn = 0; turn < 10; ++turn) {
    const auto start = Clock::now();
    parallel_for(0, kCount, 1 << 16, [&](int64_t begin, int64_t end) {
      auto* to = a.mutable_data_ptr<float>();
      const auto *one = b.const_data_ptr<float>(), *two = c.const_data_ptr<float>();
      for (auto i = begin; i < end; ++i) to[i] = one[i] + 3.0F * two[i];
    });
    best = std::min(best, ms_since(start));
  }
  return 3.0 * sizeof(float) * kCount / best / 1e6;
}

constexpr int64_t kTimelineSteps = 4;

/// The loop of generate() over rows that stay until the end.
struct DecodeLoop {
  DecodeLoop(const models::Decoder& model, levin::detail::DecodeBatch& rows_of,
             const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options)
      : batch(rows_of) {
    std::vector<const std::vector<int64_t>*> fresh;
    for (size_t i = 0; i < prompts.size(); ++i) {
      rows.emplace_back(model->options, nullptr, options, prompts[i], i);
      fresh.push_back(&prompts[i]);
    }
    logits = batch.append(fresh);
  }

  /// The next token of each row: when they were here. Without `more` no step follows them.
  Clock::time_point take(bool more) {
    std::vector<const levin::detail::SampledRow*> drawing;
    for (const auto& row : rows) drawing.push_back(&row.sampled);
    const auto drawn = levin::detail::draw(logits, drawing, nullptr, likeliest ? &*likeliest : nullptr);
    likeliest.reset();
    if (more && batch.runs_ahead()) {
      auto step = batch.decode_greedy(drawn.ids());
      logits = std::move(step.logits), likeliest = std::move(step.tokens);
    }
    auto found = drawn.wait();
    const auto here = Clock::now();
    std::vector<int64_t> ids;
    for (size_t i = 0; i < rows.size(); ++i) {
      ids.push_back(found[i].id);
      rows[i].accept(std::move(found[i]), {});
    }
    if (more && !batch.runs_ahead()) logits = batch.decode(ids);
    return here;
  }

  levin::detail::DecodeBatch& batch;
  std::vector<levin::detail::GeneratedRow> rows = {};
  at::Tensor logits = {};
  std::optional<levin::kernels::GreedyTokens> likeliest = {};
};

struct DecodeBench {
  models::LanguageModel model;
  int64_t prompt, tokens;
  c10::Device device;
  std::string cache_dtype, timeline;

  void synchronize() const { accelerator_of(device).synchronize(device); }

  /// All weights but the table of the embedding, of which a step reads a row.
  double weight_bytes() const {
    double bytes = 0;
    std::set<const void*> seen;  // a tied one counts once
    for (const auto& parameter : model.decoder->parameters())
      if (seen.insert(parameter.const_data_ptr()).second) bytes += static_cast<double>(parameter.nbytes());
    for (const auto& packed : model.decoder->buffers()) bytes += static_cast<double>(packed.nbytes());
    const auto& table = model.decoder->tokens->weight;
    return model.body().tied_head ? bytes : bytes - static_cast<double>(table.nbytes());
  }

  void measure(int64_t rows, bool graphs) const {
    levin::detail::DecodeBatch batch(model.decoder, {.rows = rows,
                                                     .capacity = prompt + tokens + kTimelineSteps + 1,
                                                     .graphs = graphs,
                                                     .dtype = models::cache_dtype_of(cache_dtype)});
    const std::vector<std::vector<int64_t>> prompts(static_cast<size_t>(rows),
                                                    std::vector<int64_t>(static_cast<size_t>(prompt), 17));
    const GenerateOptions options{.max_new_tokens = tokens + kTimelineSteps + 1, .temperature = 0};
    synchronize();
    const auto start = Clock::now();
    DecodeLoop loop(model.decoder, batch, prompts, options);
    synchronize();
    const auto prefill = ms_since(start);
    const bool profiles = graphs && !timeline.empty();
    std::vector<double> times;
    auto last = loop.take(true);
    for (int64_t i = 0; i < tokens; ++i) {
      const auto here = loop.take(i + 1 < tokens || profiles);
      times.push_back(std::chrono::duration<double, std::milli>(here - last).count());
      last = here;
    }
    if (profiles) {
      const auto profile =
          levin::bench::profile_kernels([&] { loop.take(true); }, [&] { synchronize(); }, kTimelineSteps);
      std::ofstream(timeline) << levin::bench::to_timeline(profile);
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
        static_cast<long long>(rows), graphs,
        std::getenv("LEVIN_DECODE_KERNELS") ? std::getenv("LEVIN_DECODE_KERNELS") : "1", at(0.5), at(0.95),
        1e3 * static_cast<double>(rows) / at(0.5), read / at(0.5) / 1e6,
        1e3 * static_cast<double>(rows * prompt) / prefill);
    std::fflush(stdout);
  }

  /// One row on the CPU, a round of `tokens` at a time.
  void measure_cpu(int64_t rounds, bool wait) const {
    const auto roof = triad();
    const std::vector<int64_t> ids(static_cast<size_t>(prompt), 17);
    const auto* only = &ids;
    std::vector<double> times;
    std::string line;
    const auto round = [&] {
      levin::detail::DecodeBatch batch(model.decoder, {.rows = 1, .capacity = prompt + tokens + 1});
      auto logits = batch.append({&only, 1});
      const auto start = Clock::now();
      for (int64_t i = 0; i < tokens; ++i)
        logits = batch.decode(std::vector<int64_t>{logits.argmax(1).item<int64_t>()});
      return ms_since(start) / static_cast<double>(tokens);
    };
    round();
    if (wait) std::printf("{\"ready\": true}\n"), std::fflush(stdout);
    while (wait ? static_cast<bool>(std::getline(std::cin, line)) : static_cast<int64_t>(times.size()) < rounds) {
      times.push_back(round());
      if (wait) std::printf("{\"round\": %.4f}\n", times.back()), std::fflush(stdout);
    }
    if (times.empty()) return;
    const auto& o = model.body();
    const auto ms = *std::min_element(times.begin(), times.end());
    const auto element = static_cast<double>(model.decoder->tokens->weight.element_size());
    const auto slot = 2 * element * static_cast<double>(o.num_layers * o.key_heads() * o.head_width());
    const auto bytes = weight_bytes() + slot * static_cast<double>(prompt + tokens / 2);
    const auto rate = bytes / ms / 1e6;
    std::printf(
        "{\"case\": \"generate_cpu\", \"ms\": %.4f, \"tokens_per_s\": %.2f, \"mb_per_token\": %.1f, \"gb_per_s\": "
        "%.2f, "
        "\"triad_gb_per_s\": %.2f, \"share\": %.3f, \"threads\": %d}\n",
        ms, 1e3 / ms, bytes / 1e6, rate, roof, rate / roof, at::get_num_threads());
  }

  /// Prompts of unequal lengths and tokens, from half of `prompt` to all of it.
  std::vector<std::vector<int64_t>> prompts_of(int64_t rows) const {
    std::vector<std::vector<int64_t>> prompts;
    for (int64_t i = 0; i < rows; ++i) {
      prompts.emplace_back();
      for (int64_t k = 0; k < prompt - i * (prompt / 2) / rows; ++k)
        prompts.back().push_back((37 * i + 11 * k) % 997 + 1);
    }
    return prompts;
  }

  /// The second of two runs: the first one captures graphs.
  template <class Run>
  double second_run_ms(Run&& run) const {
    run();
    synchronize();
    const auto start = Clock::now();
    run();
    synchronize();
    return ms_since(start);
  }

  /// What generate() does, with a batch that lasts, so that its graphs do.
  void offline(levin::detail::DecodeBatch& batch, const std::vector<std::vector<int64_t>>& prompts,
               const GenerateOptions& options) const {
    DecodeLoop loop(model.decoder, batch, prompts, options);
    for (int64_t t = 0; t < tokens; ++t) loop.take(t + 1 < tokens);
    while (batch.size() > 0) batch.remove(batch.size() - 1);
  }

  void measure_engine(int64_t rows) const {
    const c10::AutoGradMode no_grad(false);
    const auto prompts = prompts_of(rows);
    const GenerateOptions options{.max_new_tokens = tokens, .temperature = 0};
    double offline_ms = 0;
    {
      levin::detail::DecodeBatch batch(
          model.decoder, {.rows = rows, .capacity = prompt + tokens + 1, .dtype = models::cache_dtype_of(cache_dtype)});
      offline_ms = second_run_ms([&] { offline(batch, prompts, options); });
    }
    Engine engine(model.decoder, nullptr,
                  {.max_rows = rows,
                   .cache_tokens = rows * (prompt + tokens + 16),
                   .prefix_reuse = false,
                   .cache_dtype = cache_dtype});
    const auto together = second_run_ms([&] {
      for (const auto& each : prompts) engine.submit({.prompt = each, .options = options});
      engine.run_until_idle();
    });
    const auto count = 1e3 * static_cast<double>(rows * tokens);
    std::printf("requests %-3lld: engine %.1f tok/s, offline batch %.1f tok/s, share %.2f\n",
                static_cast<long long>(rows), count / together, count / offline_ms, offline_ms / together);
    std::fflush(stdout);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return run_main(argc, argv, [](Args& args) {
    const auto file = args.get("config", ""), device = args.get("device", "cuda"),
               batches = args.get("batches", "1,8,32");
    const auto folder = args.get("folder", ""), quantize = args.get("quantize", "");
    const auto prompt = args.get("prompt", 512), tokens = args.get("tokens", 128), rounds = args.get("rounds", 3);
    const auto threads = args.get("threads", 0);
    const bool wait = args.has("wait");
    const auto dtype = dtype_from_name("generate", args.get("dtype", "bfloat16"));
    const bool engine = args.has("engine");
    const auto cache_dtype = args.get("cache-dtype", "auto"), timeline = args.get("timeline", "");
    args.check_all_used();
    const auto config = file.empty() ? std::string(kLlama8b) : read_file(file);
    const c10::AutoGradMode no_grad(false);
    const c10::Device where(device);
    if (threads > 0) at::set_num_threads(threads);
    const models::OpenModelOptions asked{.dtype = dtype, .device = where, .quantize = folder.empty() ? "" : quantize};
    DecodeBench bench{folder.empty() ? models::new_model(config, asked) : models::open_model(folder, asked),
                      prompt,
                      tokens,
                      where,
                      cache_dtype,
                      timeline};
    if (folder.empty() && !quantize.empty()) models::quantize_model(bench.model, quantize);
    bench.model.decoder->eval();
    if (where.is_cpu() && !engine) return bench.measure_cpu(rounds, wait);
    for (size_t at = 0; at < batches.size();) {
      const auto end = std::min(batches.find(',', at), batches.size());
      const auto rows = std::stoll(batches.substr(at, end - at));
      if (engine) bench.measure_engine(rows);
      for (const bool graphs : {false, true})
        if (!engine && (!graphs || where.is_cuda())) bench.measure(rows, graphs);
      at = end + 1;
    }
  });
}
