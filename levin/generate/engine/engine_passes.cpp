#include <algorithm>

#include <ATen/ops/tensor.h>

#include "levin/generate/engine/engine_state.h"

namespace levin {

using detail::EngineRow;
using detail::PagedRow;

namespace {

/// Chunks of prompts in a step: at most, and for as many rows behind as ahead.
constexpr int64_t kMostChunks = 8, kPatience = 4;
/// Tokens that are scored in a step: beside rows that are written, and alone.
constexpr int64_t kScoredBeside = 128, kScoredAlone = 512;

}  // namespace

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
  std::vector<std::shared_ptr<detail::EngineTask>> tasks;
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
  std::set<std::shared_ptr<detail::EngineTask>> tasks;
  for (const auto& row : running)
    if (std::ranges::count(rows, row.get()) > 0) tasks.insert(row->task);
  for (const auto& task : tasks) fail(task, error.what());
}

void Engine::State::pass_guessed(const std::vector<EngineRow*>& rows, std::vector<std::vector<int64_t>> guessed) {
  std::vector<std::vector<int64_t>> ids;
  std::vector<PagedRow> parts;
  std::vector<const detail::SampledRow*> drawing;
  std::vector<std::shared_ptr<detail::EngineTask>> tasks;
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
  std::vector<std::shared_ptr<detail::EngineTask>> tasks;
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

}  // namespace levin
