#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "levin/generate/generate.h"

namespace levin {

struct EngineOptions {
  /// Requests that decode together, at most. A request of n sequences has n rows.
  int64_t max_rows = 64;
  /// Tokens whose keys and values are kept, of all requests together. 0: max_rows times the context of the model, or
  /// what 0.8 of the memory that is free holds, whichever is less.
  int64_t cache_tokens = 0;
  /// Tokens of a block of the cache: a power of two.
  int64_t block_tokens = 16;
  /// Tokens of prompts that go through the model between two decode steps.
  int64_t prefill_chunk = 512;
  /// A prompt that begins as one before it takes over the blocks that both have.
  bool prefix_reuse = true;
  /// On CUDA: a decode step is captured once for each padded number of rows, and replayed.
  bool cuda_graphs = true;
  /// What keys and values are kept in: "auto" (the dtype of the model), "int8" or "fp8".
  std::string cache_dtype = "auto";
  /// Rows that wait; one more is refused.
  int64_t max_queue = 1024;
  /// Tokens of each row that are guessed at once from what followed the same tokens earlier in the row; 0: none. What
  /// requests give stays the same.
  int64_t prompt_lookup = 0;
  /// How many tokens at the end are looked for, at most.
  int64_t prompt_lookup_ngram = 2;
  /// A smaller model of the same vocabulary that guesses draft_tokens of each row at once. What requests give stays the
  /// same, drawn tokens too.
  models::Decoder draft = nullptr;
  int64_t draft_tokens = 5;
};

/// Throws an Error of one line where a value is not allowed.
void check_options(const EngineOptions& options);

/// The tokens of a prompt under the model.
struct PromptScore {
  /// Of each token after the first: its log probability, given those before it.
  std::vector<double> logprobs = {};
  /// With top_logprobs: the likeliest tokens in their places, best first.
  std::vector<std::vector<std::pair<int64_t, double>>> top_logprobs = {};
};

/// Callbacks run in the thread of Engine::step(), and may call submit() and cancel().
struct EngineRequest {
  std::vector<int64_t> prompt = {};
  /// All but num_beams (1), `batch`, `prefill_chunk`, `cuda_graphs`, `paged`, `cache_dtype`, and who guesses tokens,
  /// which are the engine's.
  GenerateOptions options = {};
  /// For every token; GeneratedToken::row is `row` and those behind it. False ends the sequence as "cancelled".
  OnToken on_token = {};
  /// Where it is there the prompt is scored: told once, before the first token.
  std::function<void(PromptScore)> on_score = {};
  /// With on_score and a single sequence: it ends behind that as "length", without a token.
  bool score_only = false;
  /// For each of num_return_sequences sequences as it ends, also when it was cancelled; Generated::row says which.
  std::function<void(const Generated&)> on_done = {};
  /// Once, in place of what on_done has not told yet: one line on what went wrong with the request.
  std::function<void(const std::string&)> on_error = {};
  /// The number of the first sequence: sequence i draws by (seed, row + i, position), as row + i of generate() does.
  size_t row = 0;
};

struct EngineStats {
  /// Sequences now, and since the beginning.
  int64_t running = 0, waiting = 0, finished = 0, cancelled = 0, failed = 0;
  /// Sequences that gave up their blocks for older ones, and began again.
  int64_t preempted = 0;
  /// Tokens of prompts that came in, tokens that went out, and tokens of prompts that were found in the cache.
  int64_t prompt_tokens = 0, generated_tokens = 0, prefix_hit_tokens = 0;
  /// Tokens that were guessed, and those of them that the model agreed with.
  int64_t guessed_tokens = 0, taken_tokens = 0;
  /// Blocks of the cache: held by rows, kept for prompts to come, and all.
  int64_t blocks_used = 0, blocks_cached = 0, blocks_total = 0;
  int64_t cache_bytes = 0;
  /// Steps, and the passes through the model that they had.
  int64_t steps = 0, passes = 0;
  /// New tokens per second of the last steps.
  double tokens_per_second = 0;
};

/// Requests that come at any time and share a model: rows join and leave at every step, prompts go through the model in
/// chunks between decode steps (prompts that are scored in smaller ones), keys and values lie in blocks of one cache.
/// What a request gives does not depend on its company. Older requests go first: when blocks run out, the youngest row
/// gives up its own and is computed again later.
///
///     levin::Engine engine(model.decoder, &tokenizer, {.max_rows = 32});
///     engine.submit({.prompt = ids, .options = {.max_new_tokens = 64}, .on_done = [](const auto& row) { ... }});
///     engine.run_until_idle();
class Engine {
 public:
  /// The model runs in eval mode, where it lies, in its dtype. The tokenizer (null: no texts) outlives the engine.
  /// Where ranks have the model together, rank 0 has the engine and the others call follow_engine(); what goes wrong in
  /// a pass is then an Error of step(), and the engine is of no further use.
  Engine(models::Decoder model, const text::Tokenizer* tokenizer, const EngineOptions& options = {});
  /// Requests that have not ended get no further call.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// On CUDA: captures the decode steps of every number of rows that have up to `tokens` tokens each, which requests
  /// would otherwise wait for. The thread of step().
  void warm_up(int64_t tokens = 512);
  /// From any thread: the id of the request. Throws an Error of one line when the prompt does not fit, an option is not
  /// allowed or the queue is full.
  uint64_t submit(EngineRequest request);
  /// From any thread: ends what is left of a request as "cancelled". Its rows and blocks are free after the running
  /// step, or with the next one. Unknown ids and those that ended are fine.
  void cancel(uint64_t id);
  /// One thread: cancellations, new rows, a few chunks of prompts, and a token of every row. False: nothing to do.
  bool step();
  void run_until_idle();
  /// Waits until step() has something to do, at most this long; whether it has.
  bool wait(std::chrono::milliseconds most);
  /// From any thread.
  EngineStats stats() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Ranks other than 0 of a model that ranks have together: computes along with the engine of rank 0 until that is gone.
/// Throws an Error where a rank is lost.
void follow_engine(models::Decoder model);

}  // namespace levin
