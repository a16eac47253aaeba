#include "levin/generate/logit_rules.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/where.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

/// Places of flattened scores, and a number of each.
struct Places {
  std::vector<int64_t> at;
  std::vector<float> numbers;

  void add(int64_t place, double number) {
    at.push_back(place);
    numbers.push_back(static_cast<float>(number));
  }
};

/// Rules that only some calls have; each changes scores [rows, V] in place.
class RareRules {
 public:
  RareRules(Tensor& scores, std::span<const SampledRow* const> rows) : scores_(scores), rows_(rows) {}

  void apply() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto& row = *rows_[i];
      if (row.options().allowed_tokens) allow(i, row.options().allowed_tokens(row.view()));
      if (const auto only = row.forced(); !only.empty()) force(i, only);
    }
    if (std::ranges::any_of(rows_, [](const auto* row) { return row->options().remove_invalid_values; }))
      scores_ = without_invalid(scores_, rows_);
    for (size_t i = 0; i < rows_.size(); ++i) decay(i);
  }

  static bool has_any(const SampledRow& row) {
    const auto& o = row.options();
    return o.allowed_tokens || !row.forced().empty() || o.remove_invalid_values || o.exponential_decay_length_penalty;
  }

 private:
  Tensor row_at(size_t i) { return scores_.select(0, static_cast<int64_t>(i)); }
  Tensor index_of(std::vector<int64_t> ids) const {
    std::erase_if(ids, [&](int64_t id) { return id < 0 || id >= scores_.size(1); });
    return sent(at::tensor(ids, at::kLong), scores_);
  }

  void allow(size_t i, std::vector<int64_t> ids) {
    auto row = row_at(i);
    const auto index = index_of(std::move(ids));
    const auto kept = row.index_select(0, index);
    row.fill_(kRemoved).index_copy_(0, index, kept);
  }

  void force(size_t i, const std::vector<int64_t>& ids) { row_at(i).fill_(kRemoved).index_fill_(0, index_of(ids), 0); }

  void decay(size_t i) {
    const auto& o = rows_[i]->options();
    if (!o.exponential_decay_length_penalty) return;
    const auto [start, factor] = *o.exponential_decay_length_penalty;
    const auto more = rows_[i]->new_tokens() - start;
    if (more <= 0) return;
    const auto index = index_of(o.eos_token_ids);
    auto row = row_at(i);
    const auto found = row.index_select(0, index);
    const auto raised = found + found.abs() * (std::pow(factor, static_cast<double>(more)) - 1);
    row.index_copy_(0, index, at::where(found.isfinite(), raised, found));
  }

  Tensor& scores_;
  std::span<const SampledRow* const> rows_;
};

/// The hooks of programs: one call for the rows of each set of options.
Tensor hooked(Tensor scores, std::span<const SampledRow* const> rows) {
  std::map<const GenerateOptions*, std::vector<int64_t>> groups;
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i]->options().on_logits) groups[&rows[i]->options()].push_back(static_cast<int64_t>(i));
  for (const auto& [options, places] : groups) {
    std::vector<RowTokens> views;
    for (const auto i : places) views.push_back(rows[static_cast<size_t>(i)]->view());
    const bool is_all = views.size() == rows.size();
    const auto index = sent(places, scores);
    const auto given = is_all ? scores : scores.index_select(0, index);
    const auto changed = options->on_logits(given, views);
    LEVIN_CHECK(changed.defined() && changed.sizes() == given.sizes() && changed.device() == given.device(),
                "[generate] on_logits must return scores of the sizes and the device that it was given");
    scores = is_all ? changed.to(at::kFloat) : scores.index_copy(0, index, changed.to(at::kFloat));
  }
  return scores;
}

bool ends_with(std::span<const int64_t> ids, std::span<const int64_t> end) {
  return end.size() <= ids.size() && std::ranges::equal(end, ids.last(end.size()));
}

/// Tokens that would repeat a sequence of n tokens of `of`.
void add_repeats(std::vector<int64_t>& into, std::span<const int64_t> ids, std::span<const int64_t> of, int64_t size) {
  const auto n = static_cast<size_t>(size);
  if (n == 0 || of.size() < n || ids.size() + 1 < n) return;
  const auto last = ids.last(n - 1);
  for (size_t at = 0; at + n <= of.size(); ++at)
    if (std::ranges::equal(last, of.subspan(at, n - 1))) into.push_back(of[at + n - 1]);
}

}  // namespace

SampledRow::SampledRow(const GenerateOptions& options, std::vector<int64_t> prompt, uint64_t number)
    : options_(&options), ids_(std::move(prompt)), prompt_length_(static_cast<int64_t>(ids_.size())), number_(number) {
  if (!has_penalties()) return;
  for (const auto id : ids_) counts_.emplace(id, 0);
}

void SampledRow::push(int64_t id) {
  ids_.push_back(id);
  if (has_penalties()) ++counts_[id];
}

bool SampledRow::has_penalties() const {
  return options_->repetition_penalty != 1 || options_->presence_penalty != 0 || options_->frequency_penalty != 0;
}

std::vector<int64_t> SampledRow::forbidden() const {
  const auto& o = *options_;
  std::vector<int64_t> ids;
  const bool may_end = new_tokens() >= o.min_new_tokens && static_cast<int64_t>(ids_.size()) >= o.min_length;
  if (!may_end) ids = o.eos_token_ids;
  for (const auto& word : o.bad_words) {
    if (word.size() == 1 && std::ranges::count(o.eos_token_ids, word[0]) > 0) continue;
    if (ends_with(ids_, std::span(word).first(word.size() - 1))) ids.push_back(word.back());
  }
  add_repeats(ids, ids_, ids_, o.no_repeat_ngram_size);
  add_repeats(ids, ids_, std::span(ids_).first(static_cast<size_t>(prompt_length_)), o.encoder_no_repeat_ngram_size);
  return ids;
}

std::vector<int64_t> SampledRow::suppressed() const {
  auto ids = options_->suppress_tokens;
  // Behind a first token that is forced the text begins one later.
  const bool is_later = prompt_length_ == 1 && options_->forced_bos_token_id >= 0;
  if (new_tokens() == (is_later ? 1 : 0))
    ids.insert(ids.end(), options_->begin_suppress_tokens.begin(), options_->begin_suppress_tokens.end());
  return ids;
}

std::vector<int64_t> SampledRow::forced() const {
  const auto& o = *options_;
  if (!o.forced_eos_token_id.empty() && new_tokens() + 1 == o.max_new_tokens) return o.forced_eos_token_id;
  if (o.forced_bos_token_id >= 0 && ids_.size() == 1) return {o.forced_bos_token_id};
  return {};
}

Tensor without_invalid(const Tensor& logits, std::span<const SampledRow* const> rows) {
  auto asked = at::empty({static_cast<int64_t>(rows.size()), 1}, at::kBool);
  for (size_t i = 0; i < rows.size(); ++i) asked.mutable_data_ptr<bool>()[i] = rows[i]->options().remove_invalid_values;
  return at::where(sent(asked, logits), at::nan_to_num(logits, 0.0), logits);
}

Tensor penalized(const Tensor& logits, std::span<const SampledRow* const> rows) {
  Places biases, of_prompt, penalties, offsets;
  std::vector<int64_t> banned, suppressed;
  const auto words = logits.size(1);
  bool is_ruled = false;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto& row = *rows[i];
    const auto base = static_cast<int64_t>(i) * words;
    const auto is_word = [&](int64_t id) { return id >= 0 && id < words; };
    const auto& o = row.options();
    for (const auto& [id, bias] : o.logit_bias)
      if (is_word(id)) biases.add(base + id, bias);
    for (const auto& [sequence, bias] : o.sequence_bias)
      if (is_word(sequence.back()) && ends_with(row.ids(), std::span(sequence).first(sequence.size() - 1)))
        biases.add(base + sequence.back(), bias);
    if (o.encoder_repetition_penalty != 1)
      for (int64_t t = 0; t < row.prompt_length(); ++t)
        of_prompt.add(base + row.ids()[static_cast<size_t>(t)], 1 / o.encoder_repetition_penalty);
    if (row.has_penalties())
      for (const auto& [id, count] : row.counts()) {
        penalties.add(base + id, o.repetition_penalty);
        offsets.add(base + id, count == 0 ? 0 : o.presence_penalty + o.frequency_penalty * static_cast<double>(count));
      }
    for (const auto id : row.forbidden())
      if (is_word(id)) banned.push_back(base + id);
    for (const auto id : row.suppressed())
      if (is_word(id)) suppressed.push_back(base + id);
    is_ruled = is_ruled || o.on_logits || RareRules::has_any(row);
  }
  if (biases.at.empty() && of_prompt.at.empty() && penalties.at.empty() && banned.empty() && suppressed.empty() &&
      !is_ruled)
    return logits;
  auto scores = in_float(logits).clone(at::MemoryFormat::Contiguous);
  auto flat = scores.view({-1});
  if (!biases.at.empty()) flat.index_add_(0, sent(biases.at, logits), sent(biases.numbers, logits));
  for (const auto* each : {&of_prompt, &penalties}) {
    if (each->at.empty()) continue;
    const auto index = sent(each->at, logits), factor = sent(each->numbers, logits);
    const auto found = flat.index_select(0, index);
    auto changed = at::where(found < 0, found * factor, found / factor);
    if (each == &penalties) changed = changed - sent(offsets.numbers, logits);
    flat.index_copy_(0, index, changed);
  }
  if (!banned.empty()) flat.index_fill_(0, sent(banned, logits), kRemoved);
  if (is_ruled) RareRules(scores, rows).apply();
  if (!suppressed.empty()) scores.view({-1}).index_fill_(0, sent(suppressed, logits), kRemoved);
  return is_ruled ? hooked(std::move(scores), rows) : scores;
}

}  // namespace levin::detail
