#include "levin/generate/beams.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include <ATen/ops/cat.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/generated_row.h"
#include "levin/generate/generated_text.h"
#include "levin/generate/rank_agreement.h"
#include "levin/generate/sampler.h"

namespace levin::detail {
namespace {

struct Beam {
  SampledRow row;
  std::vector<double> logprobs;
  /// The sum of its log probabilities after penalties; of a whole beam over length^length_penalty.
  float score = 0;
};

/// A beam with one more token.
struct BeamStep {
  size_t beam;
  int64_t id;
  float score;
  double logprob;
  bool ends;
};

class BeamSearch {
 public:
  BeamSearch(const models::Decoder& model, const std::vector<int64_t>& prompt, const GenerateOptions& options)
      : options_(options),
        ranks_(model->ranks),
        most_(most_new_tokens(model->options, options, static_cast<int64_t>(prompt.size()))),
        batch_(model, {.rows = options.num_beams,
                       .capacity = static_cast<int64_t>(prompt.size()) + most_,
                       .prefill_chunk = options.prefill_chunk,
                       .graphs = options.cuda_graphs,
                       .dtype = models::cache_dtype_of(options.cache_dtype)}) {
    if (options.max_time > 0) deadline_ = end_of_time(std::chrono::steady_clock::now(), options.max_time);
    running_.push_back({SampledRow(options, prompt, 0), {}});
    const auto* only = &prompt;
    auto logits = batch_.append({&only, 1});
    while (advance(logits)) {
      std::vector<int64_t> tokens;
      for (const auto& beam : running_) tokens.push_back(beam.row.ids().back());
      logits = batch_.decode(tokens);
    }
  }

  /// Best first.
  const std::vector<Beam>& whole() const { return whole_; }
  /// Whether max_time has ended the search.
  bool is_late() const { return is_late_; }

 private:
  size_t width() const { return static_cast<size_t>(options_.num_beams); }

  /// The best continuations of all beams: more than are kept, so that enough are left when some of them end.
  std::vector<BeamStep> best_steps(const Tensor& logits) const {
    std::vector<const SampledRow*> rows;
    std::vector<float> sums;
    for (const auto& beam : running_) rows.push_back(&beam.row), sums.push_back(beam.score);
    const auto logs = at::log_softmax(logits, 1);
    const auto sum = at::tensor(sums, at::kFloat).to(logits.device()).unsqueeze(1);
    auto scores = penalized(logs, rows);
    if (options_.renormalize_logits) scores = at::log_softmax(scores, 1);
    const auto totals = (scores + sum).flatten();
    const auto spare = std::max<int64_t>(2, 1 + static_cast<int64_t>(options_.eos_token_ids.size()));
    const auto [values, places] = totals.topk(std::min(spare * options_.num_beams, totals.numel()));
    auto found = at::stack({places.to(at::kDouble), values.to(at::kDouble),
                            logs.flatten().index_select(0, places).to(at::kDouble)})
                     .cpu();
    follow_first_rank(ranks_, found);
    std::vector<BeamStep> steps;
    const auto words = logits.size(1);
    const auto count = found.size(1);
    const auto* at = found.const_data_ptr<double>();
    for (int64_t i = 0; i < count; ++i) {
      const auto place = static_cast<int64_t>(at[i]);
      const auto id = place % words;
      LEVIN_CHECK(!std::isnan(at[count + i]), "[generate] the model gives logits that are not numbers");
      steps.push_back({.beam = static_cast<size_t>(place / words),
                       .id = id,
                       .score = static_cast<float>(at[count + i]),
                       .logprob = at[2 * count + i],
                       .ends = std::ranges::count(options_.eos_token_ids, id) > 0});
    }
    return steps;
  }

  Beam stepped(const BeamStep& step, float score) const {
    auto beam = running_[step.beam];
    beam.row.push(step.id);
    beam.logprobs.push_back(step.logprob);
    beam.score = score;
    return beam;
  }

  /// A token for every beam. False: the search is over.
  bool advance(const Tensor& logits) {
    const auto length = running_.front().row.new_tokens() + 1;
    const auto share = static_cast<float>(std::pow(static_cast<double>(length), options_.length_penalty));
    auto steps = best_steps(logits);
    std::vector<bool> late{deadline_ && std::chrono::steady_clock::now() >= *deadline_};
    if (deadline_) follow_first_rank(ranks_, late);
    is_late_ = late[0];
    for (auto& step : steps) step.ends = step.ends || length >= most_ || is_late_;
    for (size_t i = 0; i < std::min(width(), steps.size()); ++i)
      if (steps[i].ends && std::isfinite(steps[i].score)) keep(stepped(steps[i], steps[i].score / share));
    std::vector<Beam> next;
    std::vector<int64_t> from;
    for (const auto& step : steps) {
      if (step.ends || next.size() == width() || !std::isfinite(step.score)) continue;
      next.push_back(stepped(step, step.score));
      from.push_back(static_cast<int64_t>(step.beam));
    }
    LEVIN_CHECK(!next.empty() || !whole_.empty(), "[generate] every token is forbidden (no_repeat_ngram_size, ",
                "suppress_tokens; position ", running_.front().row.ids().size(), ")");
    if (next.empty()) return false;
    running_ = std::move(next);
    const bool full = whole_.size() == width();
    if (full && (options_.early_stopping || running_.front().score / share <= whole_.back().score)) return false;
    batch_.select(from);
    return true;
  }

  /// The best are kept.
  void keep(Beam beam) {
    const auto after = std::upper_bound(whole_.begin(), whole_.end(), beam.score,
                                        [](float score, const Beam& other) { return score > other.score; });
    whole_.insert(after, std::move(beam));
    if (whole_.size() > width()) whole_.pop_back();
  }

  const GenerateOptions& options_;
  TensorRanks ranks_;
  int64_t most_;
  DecodeBatch batch_;
  std::vector<Beam> running_, whole_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  bool is_late_ = false;
};

Generated beam_result(const Beam& beam, size_t prompt, const GenerateOptions& options, bool is_late) {
  const auto& ids = beam.row.ids();
  Generated result{.prompt = prompt, .ids = {ids.begin() + beam.row.prompt_length(), ids.end()}};
  result.logprobs = beam.logprobs;
  result.score = beam.score;
  result.finish_reason = std::ranges::count(options.eos_token_ids, ids.back()) > 0    ? "stop"
                         : is_late && std::ssize(result.ids) < options.max_new_tokens ? "time"
                                                                                      : "length";
  return result;
}

/// Fills in the text, and tells the tokens.
void tell_tokens(Generated& result, size_t row, GeneratedText text, const OnToken& on_token) {
  for (size_t i = 0; i < result.ids.size(); ++i) {
    const bool is_last = i + 1 == result.ids.size();
    std::string more;
    if (!is_last || result.finish_reason != "stop") more = text.push(result.ids[i]);
    if (is_last) more += text.finish();
    result.text += more;
    if (on_token)
      on_token({.row = row,
                .id = result.ids[i],
                .logprob = result.logprobs[i],
                .text = more,
                .finish_reason = is_last ? result.finish_reason : ""});
  }
}

}  // namespace

std::vector<Generated> generate_beams(models::Decoder& model, const text::Tokenizer* tokenizer,
                                      const std::vector<std::vector<int64_t>>& prompts, const GenerateOptions& options,
                                      const OnToken& on_token) {
  std::vector<Generated> results;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const BeamSearch search(model, prompts[i], options);
    const auto count = std::min(static_cast<size_t>(options.num_return_sequences), search.whole().size());
    for (size_t k = 0; k < count; ++k) {
      results.push_back(beam_result(search.whole()[k], i, options, search.is_late()));
      results.back().row = results.size() - 1;
      tell_tokens(results.back(), results.size() - 1, GeneratedText(tokenizer, prompts[i], options.stop), on_token);
    }
  }
  return results;
}

}  // namespace levin::detail
