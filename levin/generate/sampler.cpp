#include "levin/generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/core/error.h"
#include "levin/core/random.h"
#include "levin/generate/logit_rules.h"

namespace levin::detail {
namespace {

/// One number of each row as a column [rows, 1] of float32 on the device of `like`.
template <class Value>
Tensor column_of(std::span<const SampledRow* const> rows, const Tensor& like, Value&& value) {
  auto column = at::empty({static_cast<int64_t>(rows.size()), 1}, at::kFloat);
  for (size_t i = 0; i < rows.size(); ++i)
    column.mutable_data_ptr<float>()[i] = static_cast<float>(value(rows[i]->options()));
  return sent(column, like);
}

template <class Test>
bool any_row(std::span<const SampledRow* const> rows, Test&& test) {
  return std::any_of(rows.begin(), rows.end(), [&](const auto* row) { return test(row->options()); });
}

Tensor top_k_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  const auto words = scores.size(1);
  auto place = at::empty({static_cast<int64_t>(rows.size()), 1}, at::kLong);
  int64_t largest = 1;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto asked = rows[i]->options().top_k;
    const auto k = asked > 0 ? std::min(asked, words) : 0;
    largest = std::max(largest, k);
    place.mutable_data_ptr<int64_t>()[i] = k - 1;
  }
  place = sent(place, scores);
  // Tokens that are equal to the k-th all stay.
  auto least = std::get<0>(scores.topk(largest, 1)).gather(1, place.clamp_min(0));
  least = least.masked_fill(place < 0, kRemoved);
  return scores.masked_fill(scores < least, kRemoved);
}

Tensor top_p_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  const auto [sorted, order] = scores.sort(1, /*descending=*/false);
  const auto rest = column_of(rows, scores, [](const auto& o) { return 1 - o.top_p; });
  const auto kept = column_of(rows, scores, [](const auto& o) { return o.top_p >= 1 ? 1 : 0; });
  auto removed = (at::softmax(sorted, 1).cumsum(1) <= rest) & (kept == 0);
  removed.select(1, -1).fill_(false);
  return scores.masked_fill(at::empty_like(removed).scatter_(1, order, removed), kRemoved);
}

Tensor min_p_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  const auto shares = at::softmax(scores, 1);
  const auto share = column_of(rows, scores, [](const auto& o) { return o.min_p; });
  return scores.masked_fill(shares < share * shares.amax(1, true), kRemoved);
}

Tensor typical_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  const auto logs = at::log_softmax(scores, 1);
  const auto expected = -(logs * logs.exp()).nansum(1, true);
  const auto [distance, order] = (-logs - expected).abs().sort(1, /*descending=*/false);
  const auto mass = column_of(rows, scores, [](const auto& o) { return o.typical_p; });
  const auto sums = at::softmax(scores.gather(1, order), 1).cumsum(1);
  const auto last = (sums < mass).sum(1, true).clamp_max(scores.size(1) - 1);
  auto removed = (distance > distance.gather(1, last)) & (mass < 1);
  removed.select(1, 0).fill_(false);
  return scores.masked_fill(at::empty_like(removed).scatter_(1, order, removed), kRemoved);
}

/// The entropy of a distribution, given as the logarithms of its probabilities [rows, N]: [rows, 1].
Tensor entropy(const Tensor& logs) {
  return -(logs * logs.exp()).nansum(1, true);
}

Tensor top_h_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  constexpr int64_t kMostTokens = 100;
  const auto [top, order] = scores.topk(std::min(kMostTokens, scores.size(1)), 1);
  const auto shares = at::softmax(top, 1);
  const auto fraction = column_of(rows, scores, [](const auto& o) { return o.top_h; });
  // By transformers' own operators: with a fraction of 1 the rounding of sums decides about the last tokens.
  const auto all_of_it = -(shares * (top - top.logsumexp(1, true)).clamp_min(std::numeric_limits<float>::lowest()));
  const auto kept = (-shares * shares.log()).cumsum(1) <= all_of_it.sum(1, true) * fraction;
  auto removed = kept.logical_not().masked_fill_(fraction == 0, false);
  removed.select(1, 0).fill_(false);
  // What is not among the first is removed, too.
  auto all = (fraction > 0).expand_as(scores).clone();
  return scores.masked_fill(all.scatter_(1, order, removed), kRemoved);
}

/// Removes tokens of a smaller probability than that of their row, but for the likeliest.
Tensor least_filter(const Tensor& scores, const Tensor& least) {
  const auto removed = (at::softmax(scores, 1) < least) & (scores < scores.amax(1, true));
  return scores.masked_fill(removed, kRemoved);
}

Tensor epsilon_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  return least_filter(scores, column_of(rows, scores, [](const auto& o) { return o.epsilon_cutoff; }));
}

Tensor eta_filter(const Tensor& scores, std::span<const SampledRow* const> rows) {
  const auto eta = column_of(rows, scores, [](const auto& o) { return o.eta_cutoff; });
  return least_filter(scores, at::minimum(eta, eta.sqrt() * (-entropy(at::log_softmax(scores, 1))).exp()));
}

/// A random number of each row: float64 [rows, 1].
Tensor chances(std::span<const SampledRow* const> rows, Draw place, const Tensor& like) {
  auto column = at::empty({static_cast<int64_t>(rows.size()), 1}, at::kDouble);
  for (size_t i = 0; i < rows.size(); ++i) {
    Random random(rows[i]->options().seed, rows[i]->number(), rows[i]->ids().size());
    for (int skipped = 0; skipped < static_cast<int>(place); ++skipped) random.uniform();
    column.mutable_data_ptr<double>()[i] = random.uniform();
  }
  return sent(column, like);
}

/// The first token at which the sum of shares passes the random number of the row.
Tensor drawn(const Tensor& shares, const Tensor& chance) {
  const auto sums = shares.cumsum(1);
  return (sums <= chance * sums.slice(1, -1)).sum(1).clamp_max(shares.size(1) - 1);
}

Tensor drawn_beside(const Tensor& scores, std::span<const SampledRow* const> rows, const DrawnGuesses& guesses) {
  const auto guessed = guesses.ids.unsqueeze(1), place = guessed.clamp_min(0);
  const auto own = at::softmax(scores, 1, at::kDouble);
  const auto draft = at::softmax(guesses.scores, 1, at::kDouble).masked_fill(guessed < 0, 0);
  const auto taken =
      (chances(rows, Draw::kTaking, scores) * draft.gather(1, place) < own.gather(1, place)) & (guessed >= 0);
  auto more = (own - draft).clamp_min(0);
  more = at::where(more.sum(1, true) > 0, more, own);  // equal up to rounding: either will do
  return at::where(taken.squeeze(1), guesses.ids, drawn(more, chances(rows, Draw::kReplacing, scores)));
}

/// The likeliest tokens in the place of `ids` where the temperature is 0.
Tensor unless_greedy(const Tensor& ids, const Tensor& best, std::span<const SampledRow* const> rows) {
  const auto greedy = column_of(rows, best, [](const auto& o) { return o.temperature > 0 ? 0 : 1; }).squeeze(1);
  return at::where(greedy > 0, best, ids);
}

bool any_drawn(std::span<const SampledRow* const> rows) {
  return any_row(rows, [](const auto& o) { return o.temperature > 0; });
}

/// Whether no rule may change its logits behind one more token.
bool will_be_free(const SampledRow& row) {
  const auto& o = row.options();
  const bool may_end = o.eos_token_ids.empty() || row.new_tokens() + 1 >= o.min_new_tokens;
  const bool is_ruled = o.min_length > row.prompt_length() + row.new_tokens() + 1 || !o.sequence_bias.empty() ||
                        o.encoder_repetition_penalty != 1 || o.encoder_no_repeat_ngram_size > 0 ||
                        !o.forced_eos_token_id.empty() || o.exponential_decay_length_penalty ||
                        o.remove_invalid_values || o.allowed_tokens || o.on_logits ||
                        (!o.begin_suppress_tokens.empty() && o.forced_bos_token_id >= 0);
  return may_end && !is_ruled && !row.has_penalties() && o.logit_bias.empty() && o.suppress_tokens.empty() &&
         o.bad_words.empty() && o.no_repeat_ngram_size == 0;
}

}  // namespace

Tensor filtered(const Tensor& scores, std::span<const SampledRow* const> rows) {
  auto left = scores;
  if (any_row(rows, [](const auto& o) { return o.temperature != 1 && o.temperature > 0; }))
    left = left / column_of(rows, left, [](const auto& o) { return o.temperature > 0 ? o.temperature : 1; });
  if (any_row(rows, [](const auto& o) { return o.top_h > 0; })) left = top_h_filter(left, rows);
  if (any_row(rows, [](const auto& o) { return o.top_k > 0; })) left = top_k_filter(left, rows);
  if (any_row(rows, [](const auto& o) { return o.top_p < 1; })) left = top_p_filter(left, rows);
  if (any_row(rows, [](const auto& o) { return o.min_p > 0; })) left = min_p_filter(left, rows);
  if (any_row(rows, [](const auto& o) { return o.typical_p < 1; })) left = typical_filter(left, rows);
  if (any_row(rows, [](const auto& o) { return o.epsilon_cutoff > 0; })) left = epsilon_filter(left, rows);
  if (any_row(rows, [](const auto& o) { return o.eta_cutoff > 0; })) left = eta_filter(left, rows);
  return left;
}

Tensor chosen(const Tensor& scores, std::span<const SampledRow* const> rows) {
  const auto best = scores.argmax(1);
  if (!any_drawn(rows)) return best;
  const auto ids = drawn(at::softmax(scores, 1, at::kDouble), chances(rows, Draw::kToken, scores));
  return unless_greedy(ids, best, rows);
}

bool will_take_likeliest(std::span<const SampledRow* const> rows) {
  return !any_drawn(rows) && std::ranges::all_of(rows, [](const auto* row) {
    return row->options().top_logprobs == 0 && will_be_free(*row);
  });
}

Drawn draw(const Tensor& given, std::span<const SampledRow* const> rows, const DrawnGuesses* guesses,
           const kernels::GreedyTokens* known) {
  LEVIN_CHECK(static_cast<size_t>(given.size(0)) == rows.size(), "[generate] ", given.size(0), " logits for ",
              rows.size(), " rows");
  Drawn drawn;
  for (const auto* row : rows) {
    const auto top = std::min(row->options().top_logprobs, given.size(1));
    drawn.places_.push_back({.row = row->number(), .position = row->ids().size(), .top_logprobs = top});
    drawn.most_ = std::max(drawn.most_, top);
  }
  auto scores = penalized(given, rows);
  const bool is_greedy = !any_drawn(rows) && drawn.most_ == 0;
  if (known && is_greedy && scores.is_same(given)) {
    drawn.ids_ = known->ids;
    drawn.send(known->found);
    return drawn;
  }
  // The kernel of the likeliest tokens reads 16 bits as they are.
  auto logits = is_greedy && scores.is_same(given) ? given : in_float(given);
  // Log probabilities are those of the model; of logits that are no numbers there are none.
  if (any_row(rows, [](const auto& o) { return o.remove_invalid_values; })) logits = without_invalid(logits, rows);
  if (!logits.is_same(given) && scores.is_same(given)) scores = logits;
  if (is_greedy) {
    auto [ids, found] = kernels::greedy_tokens(logits, scores);
    drawn.ids_ = std::move(ids);
    drawn.send(found);
    return drawn;
  }
  auto& ids = drawn.ids_;
  if (guesses && any_drawn(rows))
    ids = unless_greedy(drawn_beside(filtered(scores, rows), rows, *guesses), scores.argmax(1), rows);
  else
    ids = any_drawn(rows) ? chosen(filtered(scores, rows), rows) : scores.argmax(1);
  const auto logs = at::log_softmax(logits, 1);
  std::vector<Tensor> parts{kernels::found_tokens(ids, logs, scores)};
  if (drawn.most_ > 0) {
    const auto [values, best] = logs.topk(drawn.most_, 1);
    parts.push_back(best.to(at::kDouble)), parts.push_back(values.to(at::kDouble));
  }
  drawn.send(at::cat(parts, 1));
  return drawn;
}

void Drawn::send(const Tensor& found) {
  const auto device = found.device();
  if (!device.is_cuda()) {
    host_ = found.cpu();
    return;
  }
  found_ = found;
  host_ = at::empty(found.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  // On a stream of its own: what follows on this one does not wait for the copy.
  const c10::impl::VirtualGuardImpl streams(device.type());
  const auto aside = streams.getStreamFromGlobalPool(device);
  c10::Event there(device.type());
  there.record(streams.getStream(device));
  there.block(aside);
  {
    const c10::StreamGuard guard(aside);
    host_.copy_(found, /*non_blocking=*/true);
  }
  arrived_.emplace(device.type());
  arrived_->record(aside);
}

std::vector<SampledToken> Drawn::wait() const {
  if (arrived_) arrived_->synchronize();
  std::vector<SampledToken> tokens;
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto& place = places_[i];
    const auto* at = host_.const_data_ptr<double>() + static_cast<int64_t>(i) * host_.size(1);
    SampledToken token{.id = static_cast<int64_t>(at[0]), .logprob = at[1]};
    for (int64_t k = 0; k < place.top_logprobs; ++k)
      token.top.emplace_back(static_cast<int64_t>(at[3 + k]), at[3 + most_ + k]);
    std::string wrong;
    if (std::isnan(at[1]))
      wrong = "the model gives logits that are not numbers";
    else if (!(at[2] > -std::numeric_limits<double>::infinity()))
      wrong = std::string(kNoneAllowed) + " (no_repeat_ngram_size, suppress_tokens, bad_words)";
    if (!wrong.empty())
      token.error =
          "[generate] " + wrong + ": row " + std::to_string(place.row) + ", position " + std::to_string(place.position);
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<SampledToken> try_sample(const Tensor& logits, std::span<const SampledRow* const> rows,
                                     const DrawnGuesses* guesses) {
  return draw(logits, rows, guesses).wait();
}

void check_tokens(std::span<const SampledToken> tokens) {
  for (const auto& token : tokens) LEVIN_CHECK(token.error.empty(), token.error);
}

std::vector<SampledToken> sample(const Tensor& logits, std::span<const SampledRow* const> rows) {
  auto tokens = try_sample(logits, rows);
  check_tokens(tokens);
  return tokens;
}

}  // namespace levin::detail
