#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "levin/generate/decode_batch.h"
#include "levin/generate/engine.h"
#include "levin/generate/engine/engine_guesses.h"
#include "levin/generate/engine/engine_rows.h"
#include "levin/generate/speculation.h"

namespace levin {

/// What is behind an engine. Only what `mutex` guards is touched by other threads than that of step().
struct Engine::State {
  using Clock = std::chrono::steady_clock;
  using Rows = std::vector<std::unique_ptr<detail::EngineRow>>;

  State(models::Decoder asked, const text::Tokenizer* texts, const EngineOptions& engine_options);

  // Requests and their rows, in engine.cpp.
  std::unique_ptr<detail::EngineRow> new_row(std::shared_ptr<detail::EngineTask> task, size_t number) const;
  /// Blocks of a prompt that others may take over. Under dynamic rotary scaling keys beyond the positions of training
  /// depend on when they came.
  int64_t sharable_blocks(int64_t prompt_length) const;
  void check(const EngineRequest& request) const;
  /// Takes in what other threads have asked for.
  void receive();
  void cancel_rows(const std::set<uint64_t>& ids);
  void admit();
  void preempt(detail::EngineRow& row);
  void end(detail::EngineRow& row);
  /// Ends a request with a line on what went wrong.
  void fail(const std::shared_ptr<detail::EngineTask>& task, const std::string& line);
  /// Takes a row out of the lists.
  std::unique_ptr<detail::EngineRow> taken(detail::EngineRow& row);
  void count_step(Clock::time_point start);

  // Passes through the model, in engine_passes.cpp.
  void prefill();
  bool prefill_chunk(bool shortest);
  /// One chunk of the prompts that are scored: of few tokens where others are being written.
  void score();
  /// The rows of the next chunk: the oldest one whose prompt is not done, or the one that has the least to do, and
  /// those that fit beside it.
  std::vector<detail::EngineRow*> chunk_rows(bool shortest, bool scoring, int64_t limit);
  /// Tokens of a row that a pass may take.
  int64_t chunk_of(const detail::EngineRow& row, int64_t limit) const;
  /// Tells the scores of a prompt when all are there. Whether the row is still there.
  bool tell_scores(detail::EngineRow& row);
  void decode();
  /// Room for one more token of a row, taken from the youngest where there is none. False: that was the row itself.
  bool find_room(detail::EngineRow& row);
  /// Tokens that may be guessed of each row: blocks that are free are taken for them, none of other rows.
  std::vector<int64_t> guessable(const std::vector<detail::EngineRow*>& rows);
  /// One pass over the last token and the guesses of each row: the guesses that hold are taken, and one more token.
  void pass_guessed(const std::vector<detail::EngineRow*>& rows, std::vector<std::vector<int64_t>> guessed);
  /// Fails all rows of a pass: what went wrong was the model.
  void fail_pass(const std::vector<detail::EngineRow*>& rows, const std::exception& error);
  /// Tokens in their order. Whether the row is still there and continues.
  bool take(detail::EngineRow& row, std::vector<detail::SampledToken>& tokens);
  /// Through the model, `tokens` of each row; rows whose last token was among them get the next one.
  void pass(const std::vector<detail::EngineRow*>& rows, const std::vector<int64_t>& tokens, bool is_decode);
  void draw(const Tensor& logits, const std::vector<detail::EngineRow*>& rows);
  void count_pass() {
    const std::lock_guard lock(mutex);
    ++stats.passes;
  }

  models::Decoder model;
  detail::EvalScope eval;
  const text::Tokenizer* tokenizer;
  EngineOptions options;
  detail::RowBlocks blocks;
  int64_t positions;
  detail::PagedBatchOptions sizes;
  detail::PagedBatch batch;
  std::optional<detail::EngineGuesses> guesses;
  std::optional<detail::EvalScope> draft_eval;
  Clock::time_point last_told = Clock::now();
  /// By arrival.
  std::deque<std::unique_ptr<detail::EngineRow>> waiting;
  Rows running;
  uint64_t steps = 0;
  int64_t drawn = 0;  // tokens of the step under way
  double recent_tokens = 0, recent_seconds = 0;

  mutable std::mutex mutex;
  std::condition_variable changed;
  Rows arrived;
  std::set<uint64_t> cancelled;
  uint64_t next_id = 1, next_order = 0;
  EngineStats stats;
};

}  // namespace levin
