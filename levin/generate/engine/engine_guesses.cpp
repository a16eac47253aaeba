#include "levin/generate/engine/engine_guesses.h"

#include <algorithm>

#include "levin/generate/speculation.h"

namespace levin::detail {

EngineGuesses::EngineGuesses(const EngineOptions& options, const PagedBatchOptions& sizes)
    : most_(options.draft ? options.draft_tokens : options.prompt_lookup), ngram_(options.prompt_lookup_ngram) {
  if (!options.draft) return;
  const auto& draft = options.draft->options;
  if (draft.bounded()) context_ = draft.max_positions;
  auto own = sizes;
  if (draft.bounded()) own.positions = std::min(own.positions, draft.max_positions);
  draft_.emplace(options.draft, own);
}

void EngineGuesses::read_along(std::span<EngineRow* const> rows, std::span<const PagedRow> parts) {
  if (!draft_) return;
  std::vector<PagedRow> read;
  std::vector<EngineRow*> readers;
  for (size_t i = 0; i < rows.size(); ++i) {
    // A row that is longer than the draft's context continues without guesses.
    if (rows[i]->drafted != parts[i].begin || (context_ > 0 && parts[i].end > context_)) continue;
    read.push_back(parts[i]);
    read.back().kept = 1;
    readers.push_back(rows[i]);
  }
  if (read.empty()) return;
  draft_->prefill(read);
  for (size_t i = 0; i < read.size(); ++i) readers[i]->drafted = read[i].end;
}

std::vector<std::vector<int64_t>> EngineGuesses::guess(std::span<EngineRow* const> rows,
                                                       std::span<const int64_t> most) {
  if (draft_) return drafted(rows, most);
  std::vector<std::vector<int64_t>> guesses;
  for (size_t i = 0; i < rows.size(); ++i) guesses.push_back(looked_up(rows[i]->ids(), ngram_, most[i]));
  return guesses;
}

std::vector<std::vector<int64_t>> EngineGuesses::drafted(std::span<EngineRow* const> rows,
                                                         std::span<const int64_t> most) {
  struct Drafting {
    size_t row;
    int64_t most;
    SampledRow state;
    int64_t begin;  // of what the draft model has not read
  };
  std::vector<Drafting> all;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto length = rows[i]->length();
    const auto count = context_ > 0 ? std::min(most[i], context_ - length + 1) : most[i];
    if (count > 0) all.push_back({i, count, rows[i]->row.sampled, rows[i]->drafted});
  }
  std::vector<std::vector<int64_t>> guesses(rows.size());
  for (bool first = true; !all.empty(); first = false) {
    std::vector<PagedRow> parts;
    std::vector<const SampledRow*> states;
    for (const auto& each : all) {
      const auto& row = *rows[each.row];
      parts.push_back({.ids = &each.state.ids(),
                       .begin = each.begin,
                       .end = static_cast<int64_t>(each.state.ids().size()),
                       .blocks = &row.blocks,
                       .prompt_length = each.state.prompt_length()});
      states.push_back(&each.state);
    }
    const bool is_one = std::ranges::all_of(parts, [](const auto& part) { return part.end == part.begin + 1; });
    const auto logits = !first || is_one ? draft_->decode(parts) : draft_->prefill(parts);
    const auto ids = chosen(filtered(penalized(logits, states), states), states).cpu();
    for (size_t i = 0; i < all.size(); ++i) {
      const auto id = ids.const_data_ptr<int64_t>()[i];
      rows[all[i].row]->drafted = all[i].begin = parts[i].end;
      all[i].state.push(id);
      guesses[all[i].row].push_back(id);
    }
    std::erase_if(all, [&](const auto& each) { return static_cast<int64_t>(guesses[each.row].size()) == each.most; });
  }
  return guesses;
}

void EngineGuesses::settle(EngineRow& row, int64_t length_before, int64_t taken) {
  // What the draft model has read behind the last guess that holds is written again.
  row.drafted = std::min(row.drafted, length_before + taken);
}

}  // namespace levin::detail
