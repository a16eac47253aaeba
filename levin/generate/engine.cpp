#include "levin/generate/engine.h"

#include <algorithm>
#include <limits>

#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/host_memory.h"
#include "levin/generate/engine/engine_state.h"

namespace levin {

using detail::EngineRow;
using detail::EngineTask;

namespace {

/// The fraction of the memory that is free, which a cache takes that nobody gave a size. The rest of a device is for
/// activations and graphs, that of a host for everybody else.
constexpr double kDeviceShare = 0.8, kHostShare = 0.25;
/// The fraction of max_rows that is scored at a time beside rows that are written.
constexpr int64_t kScoredShare = 8;
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

Engine::State::State(models::Decoder asked, const text::Tokenizer* texts, const EngineOptions& engine_options)
    : model((detail::check_model(asked), std::move(asked))),
      eval(model),
      tokenizer(texts),
      options((check_options(engine_options), engine_options)),
      blocks(count_blocks(model, options), options.block_tokens),
      positions(blocks.pool().total() * options.block_tokens),
      sizes(detail::of_first_rank(
          model, {.blocks = blocks.pool().total() + 1,
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

std::unique_ptr<EngineRow> Engine::State::new_row(std::shared_ptr<EngineTask> task, size_t number) const {
  const auto& request = task->request;
  detail::GeneratedRow row(model->options, tokenizer, request.options, request.prompt, number);
  auto made = std::make_unique<EngineRow>(EngineRow{.task = std::move(task), .row = std::move(row)});
  made->is_scored = request.on_score && number == request.row;
  made->sharable = made->is_scored ? 0 : sharable_blocks(static_cast<int64_t>(request.prompt.size()));
  made->has_draft = guesses && guesses->has_draft();
  return made;
}

int64_t Engine::State::sharable_blocks(int64_t prompt_length) const {
  if (!options.prefix_reuse || batch.goes_alone(prompt_length)) return 0;
  const auto& of = model->options;
  return of.positions == "rotary" && of.rotary_scaling.type == "dynamic"
             ? models::trained_positions(of) / options.block_tokens
             : std::numeric_limits<int64_t>::max();
}

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
  State::Rows rows;
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
  const auto start = State::Clock::now();
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
