#include "levin/generate/engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <limits>
#include <mutex>
#include <set>

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/engine_guesses.h"
#include "levin/generate/engine_rows.h"
#include "levin/generate/speculation.h"

namespace levin {

using detail::EngineRow;
using detail::EngineTask;
using detail::PagedRow;

namespace {

using Clock = std::chrono::steady_clock;
using Rows = std::vector<std::unique_ptr<EngineRow>>;

/// Of the memory that is free: the fraction that a cache takes which nobody gave a size. The rest of a device is for
/// activations and graphs, that of a host for everybody else.
constexpr double kDeviceShare = 0.8, kHostShare = 0.25;
/// Chunks of prompts in a step: at most, and for as many rows behind as ahead.
constexpr int64_t kMostChunks = 8, kPatience = 4;
/// Tokens that are scored in a step: beside rows that are written, and alone. And the fraction of max_rows that is
/// scored at a time beside them.
constexpr int64_t kScoredBeside = 128, kScoredAlone = 512, kScoredShare = 8;
/// How much of the speed so far a step keeps.
constexpr double kKept = 0.95;
/// How often ranks that wait for the next pass hear that rank 0 is there.
constexpr std::chrono::seconds kSignOfLife{1};

/// Blocks of the cache, without the one that belongs to nobody.
int64_t count_blocks(const models::Decoder& model, const EngineOptions& options) {
  const auto each = options.block_tokens;
  if (options.cache_tokens > 0) return (options.cache_tokens + each - 1) / each;
  const auto& weight = model->tokens->weight;
  const auto device = weight.device();
  const auto bytes_of = [&](const models::Decoder& of) {
    return models::DecoderCache::token_bytes(of->options, models::cache_dtype_of(options.cache_dtype),
                                             of->tokens->weight.scalar_type());
  };
  const auto token = bytes_of(model) + (options.draft ? bytes_of(options.draft) : 0);
  auto blocks = options.max_rows * ((model->options.max_positions + each - 1) / each);
  std::optional<double> free;
  if (device.is_cpu()) {
    if (const auto bytes = available_host_memory()) free = kHostShare * static_cast<double>(*bytes);
  } else {
    const auto& accelerator = accelerator_of(device);
    free = kDeviceShare * static_cast<double>(accelerator.memory_limit(device) - accelerator.memory(device).allocated);
  }
  if (free) blocks = std::min(blocks, static_cast<int64_t>(*free / static_cast<double>(token * each)) - 1);
  LEVIN_CHECK(blocks > 0, "[engine] there is no memory for a block of ", each, " tokens of the cache (",
              format_bytes(static_cast<double>(token * each)), ")");
  return blocks;
}

std::optional<detail::EngineGuesses> guesses_of(const models::Decoder& model, const EngineOptions& options,
                                                const detail::PagedBatchOptions& sizes) {
  if (options.draft) detail::check_draft(model->options, options.draft, {});
  if (!options.draft && options.prompt_lookup == 0) return {};
  const auto& of = options.draft ? options.draft->options : model->options;
  LEVIN_CHECK(!options.draft || of.positions != "rotary" || of.rotary_scaling.type != "dynamic",
              "[engine] a draft model with dynamic rotary positions cannot follow an engine");
  return std::optional<detail::EngineGuesses>(std::in_place, options, sizes);
}

}  // namespace

/// What is behind an engine. Only what `mutex` guards is touched by other threads than that of step().
struct Engine::State {
  State(models::Decoder asked, const text::Tokenizer* texts, const EngineOptions& engine_options)
      : model((detail::check_model(asked), std::move(asked))),
        eval(model),
        tokenizer(texts),
        options((check_options(engine_options), engine_options)),
        blocks(count_blocks(model, options), options.block_tokens),
        positions(blocks.pool().total() * options.block_tokens),
        sizes(detail::of_first_rank(
            model,
            {.blocks = blocks.pool().total() + 1,
             .block_tokens = options.block_tokens,
             .positions = model->options.bounded() ? std::min(positions, model->options.max_positions) : positions,
             .dtype = models::cache_dtype_of(options.cache_dtype),
             .graphs = options.cuda_graphs})),
        batch(model, sizes),
        guesses(guesses_of(model, options, sizes)) {
    if (options.draft) draft_eval.emplace(options.draft);
    stats.blocks_total = blocks.pool().total();
    stats.cache_bytes = batch.cache().nbytes() + (guesses ? guesses->cache_bytes() : 0);
  }

  std::unique_ptr<EngineRow> new_row(std::shared_ptr<EngineTask> task, size_t number) const {
    const auto& request = task->request;
    detail::GeneratedRow row(model->options, tokenizer, request.options, request.prompt, number);
    auto made = std::make_unique<EngineRow>(EngineRow{.task = std::move(task), .row = std::move(row)});
    made->is_scored = request.on_score && number == request.row;
    made->sharable = made->is_scored ? 0 : sharable_blocks(static_cast<int64_t>(request.prompt.size()));
    made->has_draft = guesses && guesses->has_draft();
    return made;
  }

  /// Under dynamic rotary scaling keys beyond the positions of training depend on when they came.
  int64_t sharable_blocks(int64_t prompt_length) const {
    if (!options.prefix_reuse || batch.goes_alone(prompt_length)) return 0;
    const auto& of = model->options;
    return of.positions == "rotary" && of.rotary_scaling.type == "dynamic"
               ? models::trained_positions(of) / options.block_tokens
               : std::numeric_limits<int64_t>::max();
  }

  void check(const EngineRequest& request) const;
  /// What other threads have asked for.
  void receive();
  void cancel_rows(const std::set<uint64_t>& ids);
  void admit();
  void prefill();
  bool prefill_chunk(bool shortest);
  /// One chunk of the prompts that are scored: of few tokens where others are being written.
  void score();
  std::vector<EngineRow*> chunk_rows(bool shortest, bool scoring, int64_t limit);
  int64_t chunk_of(const EngineRow& row, int64_t limit) const;
  /// Tells the scores of a prompt when all are there. Whether the row is still there.
  bool tell_scores(EngineRow& row);
  void decode();
  bool find_room(EngineRow& row);
  /// How many tokens of each row may be guessed: blocks that are free are taken for them, none of other rows.
  std::vector<int64_t> guessable(const std::vector<EngineRow*>& rows);
  /// One pass over the last token and the guesses of each row: the guesses that hold are taken, and one more token.
  void pass_guessed(const std::vector<EngineRow*>& rows, std::vector<std::vector<int64_t>> guessed);
  /// What went wrong was the model, for all rows of a pass.
  void fail_pass(const std::vector<EngineRow*>& rows, const std::exception& error);
  /// Tokens in their order. Whether the row is still there and continues.
  bool take(EngineRow& row, std::vector<detail::SampledToken>& tokens);
  /// Through the model, `tokens` of each row; rows whose last token was among them get the next one.
  void pass(const std::vector<EngineRow*>& rows, const std::vector<int64_t>& tokens, bool is_decode);
  void draw(const Tensor& logits, const std::vector<EngineRow*>& rows);
  void preempt(EngineRow& row);
  void end(EngineRow& row);
  /// Ends a request with a line on what went wrong.
  void fail(const std::shared_ptr<EngineTask>& task, const std::string& line);
  std::unique_ptr<EngineRow> taken(EngineRow& row);
  void count_step(Clock::time_point start);
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
  std::deque<std::unique_ptr<EngineRow>> waiting;
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

void Engine::State::check(const EngineRequest& request) const {
  const auto& o = request.options;
  check_options(o);
  LEVIN_CHECK(o.num_beams == 1, "[engine] beams are not for requests; generate() has them");
  LEVIN_CHECK(tokenizer || o.stop.empty(), "[engine] stop strings need a tokenizer");
  LEVIN_CHECK(!request.score_only || (request.on_score && o.num_return_sequences == 1),
              "[engine] score_only needs on_score and a single sequence");
  detail::check_prompt(model->options, request.prompt, "the prompt");
  const auto length = static_cast<int64_t>(request.prompt.size());
  const auto most = request.score_only ? 1 : detail::most_new_tokens(model->options, o, length);
  LEVIN_CHECK(length + most - 1 <= positions, "[engine] a prompt of ", length, " tokens and ", most,
              " new ones do not fit the cache, which has room for ", positions, " tokens");
}

uint64_t Engine::submit(EngineRequest request) {
  auto& s = *state_;
  s.check(request);
  const auto count = request.options.num_return_sequences;
  auto task = std::make_shared<EngineTask>(EngineTask{.request = std::move(request)});
  Rows rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(s.new_row(task, task->request.row + static_cast<size_t>(i)));
  const std::lock_guard lock(s.mutex);
  LEVIN_CHECK(s.stats.waiting + count <= s.options.max_queue, "[engine] the queue is full: ", s.stats.waiting,
              " of at most ", s.options.max_queue, " wait");
  task->id = s.next_id++;
  for (auto& row : rows) {
    row->order = s.next_order++;
    s.arrived.push_back(std::move(row));
  }
  s.stats.waiting += count;
  s.stats.prompt_tokens += static_cast<int64_t>(task->request.prompt.size());
  s.changed.notify_all();
  return task->id;
}

void Engine::cancel(uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  state_->cancelled.insert(id);
  state_->changed.notify_all();
}

void Engine::State::receive() {
  std::set<uint64_t> ids;
  {
    const std::lock_guard lock(mutex);
    for (auto& row : arrived) waiting.push_back(std::move(row));
    arrived.clear();
    ids.swap(cancelled);
  }
  if (!ids.empty()) cancel_rows(ids);
}

/// Takes a row out of the lists.
std::unique_ptr<EngineRow> Engine::State::taken(EngineRow& row) {
  const auto is_it = [&](const auto& other) { return other.get() == &row; };
  std::unique_ptr<EngineRow> out;
  if (const auto at = std::ranges::find_if(running, is_it); at != running.end()) {
    out = std::move(*at);
    running.erase(at);
    blocks.release(*out);
  } else if (const auto place = std::ranges::find_if(waiting, is_it); place != waiting.end()) {
    out = std::move(*place);
    waiting.erase(place);
  }
  return out;
}

void Engine::State::cancel_rows(const std::set<uint64_t>& ids) {
  std::vector<std::pair<EngineRow*, std::shared_ptr<EngineTask>>> rows;
  for (const auto& row : running)
    if (ids.contains(row->task->id)) rows.emplace_back(row.get(), row->task);
  for (const auto& row : waiting)
    if (ids.contains(row->task->id)) rows.emplace_back(row.get(), row->task);
  for (const auto& [row, task] : rows) {
    if (task->has_failed) continue;  // in on_done of another row: this one is gone
    row->row.result.finish_reason = "cancelled";
    end(*row);
  }
}

void Engine::State::end(EngineRow& row) {
  const auto ended = taken(row);
  {
    const std::lock_guard lock(mutex);
    ++(ended->row.result.finish_reason == "cancelled" ? stats.cancelled : stats.finished);
  }
  if (!ended->task->request.on_done) return;
  try {
    ended->task->request.on_done(ended->row.result);
  } catch (const std::exception& error) {
    fail(ended->task, error.what());
  }
}

void Engine::State::fail(const std::shared_ptr<EngineTask>& task, const std::string& line) {
  if (std::exchange(task->has_failed, true)) return;
  std::vector<EngineRow*> rows;
  for (const auto& row : running)
    if (row->task == task) rows.push_back(row.get());
  for (const auto& row : waiting)
    if (row->task == task) rows.push_back(row.get());
  for (auto* row : rows) taken(*row);
  {
    const std::lock_guard lock(mutex);
    stats.failed += static_cast<int64_t>(rows.size());
  }
  if (!task->request.on_error) {
    log_warning("a request failed: " + line);
    return;
  }
  try {
    task->request.on_error(line);
  } catch (const std::exception& error) {
    log_warning(std::string("[engine] on_error failed: ") + error.what());
  }
}

void Engine::State::preempt(EngineRow& row) {
  auto out = taken(row);
  const auto behind = std::ranges::find_if(waiting, [&](const auto& other) { return other->order > out->order; });
  waiting.insert(behind, std::move(out));
  const std::lock_guard lock(mutex);
  ++stats.preempted;
}

void Engine::State::admit() {
  const auto is_scoring = [](const auto& row) { return row->is_scoring(); };
  auto scoring = std::ranges::count_if(running, is_scoring);
  // Where nothing is written a place is left for who comes next.
  const bool is_alone = std::ranges::all_of(running, is_scoring) && std::ranges::all_of(waiting, is_scoring);
  const auto most_scoring = std::max<int64_t>(1, is_alone ? options.max_rows - 1 : options.max_rows / kScoredShare);
  for (auto at = waiting.begin(); at != waiting.end() && std::ssize(running) < options.max_rows;) {
    auto& row = **at;
    // Many texts to score do not keep others from being written.
    if (row.is_scoring() && scoring >= most_scoring) {
      ++at;
      continue;
    }
    // Rows that run need blocks soon: without one for each, a new row would only be preempted.
    if (!blocks.admit(row, std::ssize(running))) return;
    scoring += row.is_scoring() ? 1 : 0;
    {
      const std::lock_guard lock(mutex);
      stats.prefix_hit_tokens += row.computed;
    }
    running.push_back(std::move(*at));
    at = waiting.erase(at);
  }
}

/// Tokens of a row that a pass may take.
int64_t Engine::State::chunk_of(const EngineRow& row, int64_t limit) const {
  auto tokens = std::min(row.remaining(), limit);
  // Nothing follows the last token.
  if (row.is_scoring() && row.task->request.score_only) tokens = std::min(tokens, row.remaining() - 1);
  // Whole blocks, where others may wait for them.
  const auto behind = (row.computed + tokens) % options.block_tokens;
  if (!row.is_scoring() && tokens < row.remaining() && behind < tokens) tokens -= behind;
  const auto prompt = row.row.sampled.prompt_length();
  // Dynamic scaling: what was generated before a preemption has other angles than the prompt.
  if (batch.goes_alone(prompt) && row.computed < prompt) tokens = std::min(tokens, prompt - row.computed);
  return tokens;
}

/// The rows of the next chunk: the oldest one whose prompt is not done, or the one that has the least to do, and those
/// that fit beside it.
std::vector<EngineRow*> Engine::State::chunk_rows(bool shortest, bool scoring, int64_t limit) {
  std::vector<EngineRow*> candidates, rows;
  int64_t found = 0;
  for (const auto& row : running) {
    if (row->remaining() <= 1 || row->is_scoring() != scoring) continue;
    found += blocks.match(*row);
    if (row->remaining() > 1) candidates.push_back(row.get());
  }
  if (found > 0) {
    const std::lock_guard lock(mutex);
    stats.prefix_hit_tokens += found;
  }
  std::ranges::sort(candidates, {}, &EngineRow::order);
  if (shortest) std::ranges::stable_sort(candidates, {}, &EngineRow::remaining);
  int64_t width = 0;
  for (auto* row : candidates) {
    const bool alone = batch.goes_alone(row->row.sampled.prompt_length());
    if (alone && !rows.empty()) continue;
    const auto wide = std::max(width, chunk_of(*row, limit));
    if (!rows.empty() && wide * static_cast<int64_t>(rows.size() + 1) > limit) continue;
    // What another row is about to compute is found after this pass.
    if (std::ranges::any_of(rows, [&](const auto* other) { return blocks.computes_same(*other, *row); })) continue;
    rows.push_back(row);
    width = wide;
    if (alone) break;
  }
  return rows;
}

bool Engine::State::prefill_chunk(bool shortest) {
  const auto rows = chunk_rows(shortest, false, options.prefill_chunk);
  if (rows.empty()) return false;
  std::vector<int64_t> tokens;
  for (const auto* row : rows) tokens.push_back(chunk_of(*row, options.prefill_chunk));
  pass(rows, tokens, false);
  return true;
}

void Engine::State::score() {
  std::vector<EngineRow*> scoring;
  for (const auto& row : running)
    if (row->is_scored) scoring.push_back(row.get());
  if (scoring.empty()) return;
  // A prompt of one token has nothing to score.
  for (auto* row : scoring) tell_scores(*row);
  const bool is_alone = std::ranges::all_of(running, [](const auto& row) { return row->is_scoring(); });
  const auto limit = std::min(options.prefill_chunk, is_alone ? kScoredAlone : kScoredBeside);
  const auto rows = chunk_rows(false, true, limit);
  if (rows.empty()) return;
  std::vector<int64_t> tokens;
  for (const auto* row : rows) tokens.push_back(chunk_of(*row, limit));
  pass(rows, tokens, false);
}

bool Engine::State::tell_scores(EngineRow& row) {
  if (!row.is_scored || row.is_scoring()) return true;
  row.is_scored = false;
  const auto task = row.task;  // the row may go
  try {
    task->request.on_score(std::move(row.score));
  } catch (const std::exception& error) {
    fail(task, error.what());
    return false;
  }
  if (!task->request.score_only) return true;
  row.row.result.finish_reason = "length";
  end(row);
  return false;
}

void Engine::State::prefill() {
  // Chunks hold up those who decode, and a step of few rows takes as long as one of many: few wait for many.
  const auto is_read = [](const auto& row) { return !row->is_scoring() && row->remaining() > 1; };
  const auto is_written = [](const auto& row) { return row->remaining() == 1; };
  const auto behind = std::ranges::count_if(running, is_read), ahead = std::ranges::count_if(running, is_written);
  const auto chunks = std::min(kMostChunks, 1 + kPatience * behind / (ahead + 1));
  // In turns, so that a short prompt overtakes a long one, and a long one still gets its turn.
  for (int64_t i = 0; i < chunks && prefill_chunk((steps + static_cast<uint64_t>(i)) % 2 == 1); ++i) {
  }
}

/// Room for one more token of a row, taken from the youngest where there is none. False: that was the row itself.
bool Engine::State::find_room(EngineRow& row) {
  while (!blocks.grow(row, row.computed + 1)) {
    auto* youngest = std::ranges::max_element(running, {}, &EngineRow::order)->get();
    const bool is_own = youngest == &row;
    preempt(*youngest);
    if (is_own) return false;
  }
  return true;
}

void Engine::State::decode() {
  std::vector<EngineRow*> rows;
  for (const auto& row : running)
    if (row->remaining() == 1) rows.push_back(row.get());
  std::ranges::sort(rows, {}, &EngineRow::order);
  const auto is_running = [&](const EngineRow* row) {
    return std::ranges::any_of(running, [&](const auto& other) { return other.get() == row; });
  };
  for (auto* row : rows)
    if (is_running(row)) find_room(*row);
  std::erase_if(rows, [&](const auto* row) { return !is_running(row); });
  if (rows.empty()) return;
  if (guesses) {
    auto guessed = guesses->guess(rows, guessable(rows));
    if (std::ranges::any_of(guessed, [](const auto& ids) { return !ids.empty(); })) {
      pass_guessed(rows, std::move(guessed));
      return;
    }
  }
  pass(rows, std::vector<int64_t>(rows.size(), 1), true);
}

std::vector<int64_t> Engine::State::guessable(const std::vector<EngineRow*>& rows) {
  std::vector<int64_t> most;
  for (auto* row : rows) {
    const auto length = row->length();
    // Without the token behind the guesses.
    auto count = std::min(guesses->most(), row->row.most - row->row.sampled.new_tokens() - 1);
    if (model->options.bounded()) count = std::min(count, model->options.max_positions - length);
    const auto spare = blocks.pool().available() + static_cast<int64_t>(row->blocks.size());
    count = std::max<int64_t>(std::min(count, spare * options.block_tokens - length), 0);
    if (count > 0) blocks.grow(*row, length + count);
    most.push_back(count);
  }
  return most;
}

void Engine::State::pass(const std::vector<EngineRow*>& rows, const std::vector<int64_t>& tokens, bool is_decode) {
  std::vector<PagedRow> parts;
  std::vector<std::shared_ptr<EngineTask>> tasks;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = *rows[i];
    const auto end = row.computed + tokens[i];
    parts.push_back({.ids = &row.ids(),
                     .begin = row.computed,
                     .end = end,
                     .blocks = &row.blocks,
                     .prompt_length = row.row.sampled.prompt_length(),
                     .kept = row.is_scoring() ? std::max<int64_t>(1, end - std::max(row.computed, row.scored())) : 1});
    tasks.push_back(row.task);
  }
  std::vector<EngineRow*> drawing;
  std::vector<int64_t> places;
  count_pass();
  try {
    auto logits = is_decode ? batch.decode(parts) : batch.prefill(parts);
    if (guesses && !is_decode) guesses->read_along(rows, parts);
    int64_t seen = 0;  // of the logits
    for (size_t i = 0; i < rows.size(); ++i) {
      seen += parts[i].kept;
      if (tasks[i]->has_failed) continue;  // with another of its sequences: the row is gone
      rows[i]->computed = parts[i].end;
      blocks.publish(*rows[i]);
      if (rows[i]->is_scoring())
        detail::take_scores(*rows[i], logits.slice(0, seen - parts[i].kept, seen), parts[i].end - parts[i].kept);
      if (!tell_scores(*rows[i]) || rows[i]->remaining() > 0) continue;
      drawing.push_back(rows[i]);
      places.push_back(seen - 1);
    }
    if (drawing.empty()) return;
    if (std::ssize(drawing) < seen) logits = logits.index_select(0, at::tensor(places, at::kLong).to(logits.device()));
    draw(logits, drawing);
  } catch (const std::exception& error) {
    fail_pass(rows, error);
  }
}

void Engine::State::fail_pass(const std::vector<EngineRow*>& rows, const std::exception& error) {
  if (model->ranks) throw;  // the ranks are not at the same pass any more
  std::set<std::shared_ptr<EngineTask>> tasks;
  for (const auto& row : running)
    if (std::ranges::count(rows, row.get()) > 0) tasks.insert(row->task);
  for (const auto& task : tasks) fail(task, error.what());
}

void Engine::State::pass_guessed(const std::vector<EngineRow*>& rows, std::vector<std::vector<int64_t>> guessed) {
  std::vector<std::vector<int64_t>> ids;
  std::vector<PagedRow> parts;
  std::vector<const detail::SampledRow*> drawing;
  std::vector<std::shared_ptr<EngineTask>> tasks;
  ids.reserve(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    auto& read = ids.emplace_back(rows[i]->ids());
    read.insert(read.end(), guessed[i].begin(), guessed[i].end());
    parts.push_back({.ids = &read,
                     .begin = rows[i]->computed,
                     .end = static_cast<int64_t>(read.size()),
                     .blocks = &rows[i]->blocks,
                     .prompt_length = rows[i]->row.sampled.prompt_length()});
    drawing.push_back(&rows[i]->row.sampled);
    tasks.push_back(rows[i]->task);
  }
  count_pass();
  try {
    auto taken = detail::agreed(batch.decode_several(parts), drawing, {.ids = guessed});
    for (size_t i = 0; i < rows.size(); ++i) {
      if (tasks[i]->has_failed) continue;  // with another of its sequences: the row is gone
      const auto guesses_of_row = static_cast<int64_t>(guessed[i].size());
      const auto held = static_cast<int64_t>(taken[i].size()) - 1;
      rows[i]->row.result.guessed_tokens += guesses_of_row;
      rows[i]->row.result.taken_tokens += held;
      {
        const std::lock_guard lock(mutex);
        stats.guessed_tokens += guesses_of_row;
        stats.taken_tokens += held;
      }
      take(*rows[i], taken[i]);
    }
  } catch (const std::exception& error) {
    fail_pass(rows, error);
  }
}

bool Engine::State::take(EngineRow& row, std::vector<detail::SampledToken>& tokens) {
  const auto task = row.task;  // the row may go
  const auto before = row.length();
  bool ends = false;
  for (auto& token : tokens) {
    if (!token.error.empty()) {
      fail(task, token.error);
      return false;
    }
    ++drawn;
    try {
      ends = row.row.accept(std::move(token), task->request.on_token);
    } catch (const std::exception& error) {
      fail(task, error.what());
      return false;
    }
    if (ends) break;
  }
  row.computed = row.length() - 1;
  detail::EngineGuesses::settle(row, before, row.length() - before - 1);
  blocks.publish(row);
  if (ends) end(row);
  return !ends;
}

void Engine::State::draw(const Tensor& logits, const std::vector<EngineRow*>& rows) {
  std::vector<const detail::SampledRow*> drawing;
  std::vector<std::shared_ptr<EngineTask>> tasks;
  for (const auto* row : rows) drawing.push_back(&row->row.sampled), tasks.push_back(row->task);
  auto tokens = detail::try_sample(logits, drawing);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& task = tasks[i];
    if (task->has_failed) continue;  // with another of its sequences: the row is gone
    if (!tokens[i].error.empty()) {
      fail(task, tokens[i].error);
      continue;
    }
    ++drawn;
    try {
      if (!rows[i]->row.accept(std::move(tokens[i]), task->request.on_token)) continue;
    } catch (const std::exception& error) {
      fail(task, error.what());
      continue;
    }
    end(*rows[i]);
  }
}

void Engine::State::count_step(Clock::time_point start) {
  recent_seconds = kKept * recent_seconds + std::chrono::duration<double>(Clock::now() - start).count();
  recent_tokens = kKept * recent_tokens + static_cast<double>(drawn);
  const std::lock_guard lock(mutex);
  ++stats.steps;
  stats.generated_tokens += drawn;
  stats.tokens_per_second = recent_seconds > 0 ? recent_tokens / recent_seconds : 0;
  stats.running = static_cast<int64_t>(running.size());
  stats.waiting = static_cast<int64_t>(waiting.size() + arrived.size());
  const auto& pool = blocks.pool();
  stats.blocks_used = pool.total() - pool.available();
  stats.blocks_cached = pool.cached();
}

Engine::Engine(models::Decoder model, const text::Tokenizer* tokenizer, const EngineOptions& options) {
  LEVIN_CHECK(model.is_empty() || !model->ranks || model->ranks->rank() == 0,
              "[engine] of ranks that have a model together, rank 0 has the engine; others call follow_engine()");
  state_ = std::make_unique<State>(std::move(model), tokenizer, options);
}

Engine::~Engine() {
  try {
    state_->batch.tell(detail::PassKind::kEnd);
  } catch (const std::exception&) {
    // The others are gone: nobody waits for it.
  }
}

void follow_engine(models::Decoder model) {
  detail::check_model(model);
  LEVIN_CHECK(model->ranks && model->ranks->rank() > 0, "[engine] follow_engine is for ranks other than 0");
  const c10::AutoGradMode no_grad(false);
  const detail::EvalScope eval(model);
  detail::PagedBatch(model, detail::of_first_rank(model, {})).follow();
}

void Engine::warm_up(int64_t tokens) {
  const c10::AutoGradMode no_grad(false);
  state_->batch.warm_up(state_->options.max_rows, std::min(tokens, state_->positions));
}

bool Engine::step() {
  auto& s = *state_;
  const c10::AutoGradMode no_grad(false);
  const auto start = Clock::now();
  if (start - s.last_told >= kSignOfLife) {
    s.batch.tell(detail::PassKind::kNone);
    s.last_told = start;
  }
  {
    const std::lock_guard lock(s.mutex);
    if (s.arrived.empty() && s.cancelled.empty() && s.waiting.empty() && s.running.empty()) return false;
  }
  s.drawn = 0;
  s.receive();
  s.admit();
  s.prefill();
  s.score();
  s.decode();
  s.receive();  // who left meanwhile frees its place now
  ++s.steps;
  s.count_step(start);
  return true;
}

void Engine::run_until_idle() {
  while (step()) {
  }
}

bool Engine::wait(std::chrono::milliseconds most) {
  auto& s = *state_;
  std::unique_lock lock(s.mutex);
  return s.changed.wait_for(
      lock, most, [&] { return !s.arrived.empty() || !s.cancelled.empty() || s.stats.running + s.stats.waiting > 0; });
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}

}  // namespace levin
