#include "levin/generate/generate.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/generate/beams.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/generated_text.h"
#include "levin/generate/rank_agreement.h"
#include "levin/generate/sampler.h"

namespace levin {
namespace detail {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

int64_t tokens_of(const std::vector<int64_t>& prompt) {
  return static_cast<int64_t>(prompt.size());
}

/// Eval mode, and the mode from before at the end.
class EvalScope {
 public:
  explicit EvalScope(models::DecoderImpl& model) : model_(model), was_training_(model.is_training()) {
    if (was_training_) model_.eval();
  }
  ~EvalScope() {
    if (was_training_) model_.train();
  }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  models::DecoderImpl& model_;
  bool was_training_;
};

void check_prompts(const models::DecoderOptions& model, const Prompts& prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    LEVIN_CHECK(!prompts[i].empty(), "[generate] prompt ", i, " has no tokens");
    const auto length = static_cast<int64_t>(prompts[i].size());
    LEVIN_CHECK(!model.bounded() || length <= model.max_positions, "[generate] prompt ", i, " has ", length,
                " tokens, the context of the model has ", model.max_positions);
    for (const auto id : prompts[i])
      LEVIN_CHECK(id >= 0 && id < model.vocab_size, "[generate] prompt ", i, " has the id ", id,
                  "; the model has 0 to ", model.vocab_size - 1);
  }
}

/// Rows of a call, from their prompts to their last tokens. A row that ends makes room for the next prompt.
class GenerateRun {
 public:
  GenerateRun(const models::Decoder& model, const text::Tokenizer* tokenizer, const Prompts& prompts,
              const GenerateOptions& options, const OnToken& on_token)
      : model_(model), tokenizer_(tokenizer), prompts_(prompts), options_(options), on_token_(on_token) {
    const auto copies = static_cast<size_t>(options.num_return_sequences);
    results_.resize(prompts.size() * copies);
    waiting_.resize(results_.size());
    for (size_t i = 0; i < results_.size(); ++i) results_[i].prompt = i / copies;
    // The longest first, which end last; popped from the back. Rows of one prompt stay together.
    std::iota(waiting_.begin(), waiting_.end(), size_t{0});
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [&](size_t a, size_t b) { return prompt_of(a).size() < prompt_of(b).size(); });
  }

  std::vector<Generated> run() {
    if (results_.empty()) return {};
    int64_t capacity = 0;
    for (const auto& prompt : prompts_)
      capacity = std::max(capacity, tokens_of(prompt) + most_new_tokens(model_->options, options_, tokens_of(prompt)));
    const auto rows = std::min(options_.batch, static_cast<int64_t>(results_.size()));
    batch_.emplace(model_, DecodeBatchOptions{.rows = rows,
                                              .capacity = capacity,
                                              .prefill_chunk = options_.prefill_chunk,
                                              .graphs = options_.cuda_graphs});
    while (!waiting_.empty() || !rows_.empty()) {
      if (!waiting_.empty() && batch_->room() > 0) admit();
      if (rows_.empty()) continue;
      std::vector<int64_t> tokens;
      for (const auto& row : rows_) tokens.push_back(row.sampled.ids().back());
      take(batch_->decode(tokens), 0);
    }
    return std::move(results_);
  }

 private:
  struct Row {
    size_t result;
    SampledRow sampled;
    GeneratedText text;
    int64_t most;
  };

  const std::vector<int64_t>& prompt_of(size_t result) const { return prompts_[results_[result].prompt]; }

  /// As many waiting rows as there is room for, with their first tokens.
  void admit() {
    const auto first = rows_.size();
    std::vector<const std::vector<int64_t>*> fresh;
    std::vector<int64_t> which;  // the fresh prompt of each row
    for (auto room = batch_->room(); room > 0 && !waiting_.empty(); --room) {
      const auto result = waiting_.back();
      waiting_.pop_back();
      const auto& prompt = prompt_of(result);
      if (fresh.empty() || fresh.back() != &prompt) fresh.push_back(&prompt);
      which.push_back(static_cast<int64_t>(fresh.size()) - 1);
      rows_.push_back({result, SampledRow(options_, prompt, result), GeneratedText(tokenizer_, prompt, options_.stop),
                       most_new_tokens(model_->options, options_, tokens_of(prompt))});
    }
    const auto logits = batch_->append(fresh);
    place_copies(first, fresh.size(), which);
    take(logits.index_select(0, at::tensor(which, at::kLong).to(logits.device())), first);
  }

  /// Rows of the batch in the order of rows_: a prompt that several rows have went through the model once.
  void place_copies(size_t first, size_t fresh, const std::vector<int64_t>& which) {
    if (fresh == which.size()) return;
    std::vector<int64_t> rows(first);
    std::iota(rows.begin(), rows.end(), int64_t{0});
    for (const auto each : which) rows.push_back(static_cast<int64_t>(first) + each);
    batch_->select(rows);
  }

  /// Draws a token for each row from `first` on.
  void take(const Tensor& logits, size_t first) {
    std::vector<const SampledRow*> drawing;
    for (auto i = first; i < rows_.size(); ++i) drawing.push_back(&rows_[i].sampled);
    auto tokens = sample(logits, drawing);
    follow_first_rank(model_->ranks, tokens);
    std::vector<bool> ends;
    for (auto i = first; i < rows_.size(); ++i) ends.push_back(accept(rows_[i], std::move(tokens[i - first])));
    follow_first_rank(model_->ranks, ends);
    std::vector<size_t> ended;
    for (auto i = first; i < rows_.size(); ++i) {
      if (!ends[i - first]) continue;
      ended.push_back(i);
      auto& reason = results_[rows_[i].result].finish_reason;
      if (reason.empty()) reason = "cancelled";  // by the callback of rank 0
    }
    for (auto i = ended.rbegin(); i != ended.rend(); ++i) {
      batch_->remove(static_cast<int64_t>(*i));
      if (*i + 1 < rows_.size()) rows_[*i] = std::move(rows_.back());
      rows_.pop_back();
    }
  }

  /// Whether the row ends with the token.
  bool accept(Row& row, SampledToken token) {
    auto& result = results_[row.result];
    row.sampled.push(token.id);
    result.ids.push_back(token.id);
    result.logprobs.push_back(token.logprob);
    std::string text;
    if (std::ranges::count(options_.eos_token_ids, token.id) > 0)
      result.finish_reason = "stop";
    else
      text = row.text.push(token.id);
    if (row.text.stopped())
      result.finish_reason = "stop";
    else if (result.finish_reason.empty() && row.sampled.new_tokens() >= row.most)
      result.finish_reason = "length";
    if (!result.finish_reason.empty()) text += row.text.finish();
    if (row.text.stopped()) result.finish_reason = "stop";
    result.text += text;
    if (on_token_ &&
        !on_token_({.row = row.result,
                    .id = token.id,
                    .logprob = token.logprob,
                    .top_logprobs = token.top,
                    .text = text,
                    .finish_reason = result.finish_reason}) &&
        result.finish_reason.empty() && is_first_rank(model_->ranks))
      result.finish_reason = "cancelled";
    if (options_.top_logprobs > 0) result.top_logprobs.push_back(std::move(token.top));
    return !result.finish_reason.empty();
  }

  models::Decoder model_;
  const text::Tokenizer* tokenizer_;
  const Prompts& prompts_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  std::vector<Generated> results_;
  std::vector<size_t> waiting_;
  std::optional<DecodeBatch> batch_;
  std::vector<Row> rows_;  // as in the batch
};

std::vector<Generated> generated(models::Decoder& model, const text::Tokenizer* tokenizer, const Prompts& prompts,
                                 const GenerateOptions& options, const OnToken& on_token) {
  LEVIN_CHECK(model, "[generate] there is no decoder (an encoder does not generate)");
  LEVIN_CHECK(model->head, "[generate] the model classifies sequences; a causal language model is needed");
  check_options(options);
  LEVIN_CHECK(tokenizer || options.stop.empty(), "[generate] stop strings need a tokenizer");
  check_prompts(model->options, prompts);
  const c10::AutoGradMode no_grad(false);
  const EvalScope eval(*model);
  if (options.num_beams > 1) return generate_beams(model, tokenizer, prompts, options, on_token);
  return GenerateRun(model, tokenizer, prompts, options, on_token).run();
}

}  // namespace
}  // namespace detail

std::vector<Generated> generate(models::Decoder model, const std::vector<std::vector<int64_t>>& prompts,
                                const GenerateOptions& options, const OnToken& on_token) {
  return detail::generated(model, nullptr, prompts, options, on_token);
}

std::vector<Generated> generate(models::Decoder model, const text::Tokenizer& tokenizer,
                                std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options,
                                const OnToken& on_token) {
  return detail::generated(model, &tokenizer, {prompts.begin(), prompts.end()}, options, on_token);
}

std::vector<Generated> generate(models::Decoder model, const text::Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts, const GenerateOptions& options,
                                const OnToken& on_token) {
  std::vector<std::vector<int64_t>> ids;
  for (const auto& encoding : tokenizer.encode_batch(prompts, {.tokens = false, .offsets = false}))
    ids.push_back(encoding.ids);
  return detail::generated(model, &tokenizer, ids, options, on_token);
}

}  // namespace levin
