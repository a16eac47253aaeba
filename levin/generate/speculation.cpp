#include "levin/generate/speculation.h"

#include <algorithm>

#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

std::vector<const SampledRow*> pointers(const std::vector<SampledRow>& rows) {
  std::vector<const SampledRow*> all;
  for (const auto& row : rows) all.push_back(&row);
  return all;
}

/// The guess in each place of a list of logits, -1 behind the last one of a row, and the scores that it was drawn from.
DrawnGuesses drawn_guesses(const Guesses& guesses, const Tensor& like) {
  std::vector<int64_t> ids, places;
  const auto rows = static_cast<int64_t>(guesses.ids.size());
  for (int64_t i = 0; i < rows; ++i) {
    const auto& own = guesses.ids[static_cast<size_t>(i)];
    for (size_t t = 0; t <= own.size(); ++t) {
      ids.push_back(t < own.size() ? own[t] : -1);
      places.push_back(t < own.size() ? static_cast<int64_t>(t) * rows + i : 0);
    }
  }
  const auto scores = at::stack(guesses.scores).flatten(0, 1);  // [guesses * rows, V]
  return {at::tensor(ids, at::kLong).to(like.device()),
          scores.index_select(0, at::tensor(places, at::kLong).to(like.device()))};
}

}  // namespace

std::vector<std::vector<int64_t>> Guesses::tokens(std::span<const SampledRow* const> rows) const {
  std::vector<std::vector<int64_t>> all;
  for (size_t i = 0; i < rows.size(); ++i) {
    all.push_back({rows[i]->ids().back()});
    all.back().insert(all.back().end(), ids[i].begin(), ids[i].end());
  }
  return all;
}

std::vector<int64_t> looked_up(std::span<const int64_t> ids, int64_t ngram, int64_t most) {
  const auto length = static_cast<int64_t>(ids.size());
  if (most <= 0) return {};
  for (auto n = std::min(ngram, length - 1); n > 0; --n) {
    const auto last = ids.last(static_cast<size_t>(n));
    const auto found = std::search(ids.begin(), ids.end() - 1, last.begin(), last.end());
    if (found == ids.end() - 1) continue;
    const auto next = found + n;
    return {next, next + std::min<std::ptrdiff_t>(most, ids.end() - next)};
  }
  return {};
}

Speculation::Speculation(const GenerateOptions& options, const DecodeBatchOptions& sizes, int64_t most, int64_t context)
    : options_(options), most_(most), context_(context) {
  if (options.draft) draft_.emplace(options.draft, sizes);
}

void Speculation::append(std::span<const std::vector<int64_t>* const> prompts) {
  if (draft_) draft_->append(prompts);
}

void Speculation::select(std::span<const int64_t> rows) {
  if (draft_) draft_->select(rows);
}

void Speculation::remove(int64_t row) {
  if (draft_) draft_->remove(row);
}

void Speculation::truncate(int64_t row, int64_t length) {
  if (draft_) draft_->truncate(row, std::min(length, draft_->length(row)));
}

Guesses Speculation::guess(std::span<const SampledRow* const> rows, std::span<const int64_t> most) {
  // A pass has as many places for each row, which must lie within the context.
  auto room = most_;
  for (const auto* row : rows)
    if (context_ > 0) room = std::min(room, context_ - static_cast<int64_t>(row->ids().size()));
  auto wanted = std::max(*std::max_element(most.begin(), most.end()), int64_t{0});
  wanted = std::min(room, wanted);
  Guesses guesses{.ids = std::vector<std::vector<int64_t>>(rows.size())};
  if (wanted <= 0 || (draft_ && !can_draft(rows))) return guesses;
  if (draft_) {
    guesses = drafted(rows, wanted);
    for (size_t i = 0; i < rows.size(); ++i)
      guesses.ids[i].resize(static_cast<size_t>(std::clamp(most[i], int64_t{0}, wanted)));
  } else {
    for (size_t i = 0; i < rows.size(); ++i)
      guesses.ids[i] = looked_up(rows[i]->ids(), options_.prompt_lookup_ngram, std::min(wanted, most[i]));
  }
  return guesses;
}

bool Speculation::can_draft(std::span<const SampledRow* const> rows) const {
  int64_t unread = 0, longest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto read = draft_->length(static_cast<int64_t>(i));
    unread = std::max(unread, static_cast<int64_t>(rows[i]->ids().size()) - read);
    longest = std::max(longest, read);
  }
  return longest + unread <=
         (context_ > 0 ? std::min(context_, draft_->cache().capacity()) : draft_->cache().capacity());
}

Guesses Speculation::drafted(std::span<const SampledRow* const> rows, int64_t count) {
  std::vector<SampledRow> states;
  std::vector<std::vector<int64_t>> unread;
  std::vector<int64_t> last;
  for (size_t i = 0; i < rows.size(); ++i) {
    states.push_back(*rows[i]);
    const auto& ids = rows[i]->ids();
    unread.emplace_back(ids.begin() + draft_->length(static_cast<int64_t>(i)), ids.end());
    last.push_back(static_cast<int64_t>(unread.back().size()) - 1 + (i == 0 ? 0 : last.back() + 1));
  }
  const auto drawing = pointers(states);
  Guesses guesses{.ids = std::vector<std::vector<int64_t>>(rows.size())};
  auto logits = draft_->decode_several(unread);
  logits = logits.index_select(0, at::tensor(last, at::kLong).to(logits.device()));
  for (;;) {
    guesses.scores.push_back(filtered(penalized(logits, drawing), drawing));
    const auto ids = chosen(guesses.scores.back(), drawing).cpu();
    std::vector<int64_t> tokens(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      guesses.ids[i].push_back(tokens[i]);
      states[i].push(tokens[i]);
    }
    if (static_cast<int64_t>(guesses.scores.size()) == count) return guesses;
    logits = draft_->decode(tokens);
  }
}

std::unique_ptr<Speculation> make_speculation(const models::Decoder& model, const GenerateOptions& options,
                                              DecodeBatchOptions& sizes) {
  const auto most = options.draft ? options.draft_tokens : options.prompt_lookup;
  if (most == 0) return nullptr;
  sizes.capacity += most + 1;  // guesses that turn out wrong, and what fills up rows with fewer
  int64_t context = 0;
  for (const auto* each : {&model, &options.draft})
    if (*each && (*each)->options.bounded())
      context = context > 0 ? std::min(context, (*each)->options.max_positions) : (*each)->options.max_positions;
  return std::make_unique<Speculation>(options, sizes, most, context);
}

void check_draft(const models::DecoderOptions& model, const models::Decoder& draft,
                 const std::vector<std::vector<int64_t>>& prompts) {
  LEVIN_CHECK(draft->head, "[generate] the draft model classifies sequences; a causal language model is needed");
  const auto& o = draft->options;
  LEVIN_CHECK(o.vocab_size == model.vocab_size, "[generate] the draft model has another vocabulary: ", o.vocab_size,
              " tokens, the model has ", model.vocab_size);
  for (size_t i = 0; i < prompts.size(); ++i)
    LEVIN_CHECK(!o.bounded() || static_cast<int64_t>(prompts[i].size()) <= o.max_positions, "[generate] prompt ", i,
                " has ", prompts[i].size(), " tokens, the context of the draft model has ", o.max_positions);
}

std::vector<std::vector<SampledToken>> agreed(const Tensor& logits, std::span<const SampledRow* const> rows,
                                              const Guesses& guesses) {
  // The row as it will be in each place if all guesses before it hold.
  std::vector<SampledRow> states;
  for (size_t i = 0; i < rows.size(); ++i) {
    states.push_back(*rows[i]);
    for (const auto id : guesses.ids[i]) {
      states.push_back(states.back());
      states.back().push(id);
    }
  }
  std::optional<DrawnGuesses> drawn;
  if (!guesses.scores.empty()) drawn = drawn_guesses(guesses, logits);
  auto tokens = try_sample(logits, pointers(states), drawn ? &*drawn : nullptr);
  std::vector<std::vector<SampledToken>> taken(rows.size());
  auto at = tokens.begin();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& own = guesses.ids[i];
    for (size_t t = 0; t <= own.size(); ++t) {
      taken[i].push_back(std::move(at[static_cast<std::ptrdiff_t>(t)]));
      // Behind a guess that does not hold errors mean nothing.
      if (!taken[i].back().error.empty() || t == own.size() || taken[i].back().id != own[t]) break;
    }
    at += static_cast<std::ptrdiff_t>(own.size()) + 1;
  }
  return taken;
}

}  // namespace levin::detail
