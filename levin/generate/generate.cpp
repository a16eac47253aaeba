#include "levin/generate/generate.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/generate/beams.h"
#include "levin/generate/decode_batch.h"
#include "levin/generate/generate_detail.h"
#include "levin/generate/generated_row.h"
#include "levin/generate/rank_agreement.h"
#include "levin/generate/speculation.h"

namespace levin {
namespace detail {
namespace {

using Prompts = std::vector<std::vector<int64_t>>;

int64_t tokens_of(const std::vector<int64_t>& prompt) {
  return static_cast<int64_t>(prompt.size());
}

/// Rows of a call, from their prompts to their last tokens. A row that ends makes room for the next prompt.
class GenerateRun {
 public:
  GenerateRun(const models::Decoder& model, const text::Tokenizer* tokenizer, const Prompts& prompts,
              const GenerateOptions& options, const OnToken& on_token, RunAhead run_ahead,
              const std::shared_ptr<GraphDevice>& graph_device)
      : model_(model),
        tokenizer_(tokenizer),
        prompts_(prompts),
        options_(options),
        on_token_(on_token),
        run_ahead_(run_ahead),
        graph_device_(graph_device) {
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
    DecodeBatchOptions sizes{.rows = rows,
                             .capacity = capacity,
                             .prefill_chunk = options_.prefill_chunk,
                             .graphs = options_.cuda_graphs,
                             .dtype = models::cache_dtype_of(options_.cache_dtype),
                             .run_ahead = run_ahead_,
                             .graph_device = graph_device_};
    speculation_ = make_speculation(model_, options_, sizes);
    batch_.emplace(model_, sizes);
    if (options_.max_time > 0) deadline_ = end_of_time(std::chrono::steady_clock::now(), options_.max_time);
    while (!waiting_.empty() || !rows_.empty()) {
      if (!waiting_.empty() && is_late()) end_waiting();
      if (!waiting_.empty() && batch_->room() > 0) admit();
      if (rows_.empty()) continue;
      if (speculation_) {
        take_guessed();
        continue;
      }
      if (!ahead_.logits.defined()) ahead_ = {decode()};
      take(std::exchange(ahead_, {}), 0);
    }
    return std::move(results_);
  }

 private:
  /// What is behind the tokens of some rows.
  struct Behind {
    Tensor logits = {};
    std::optional<kernels::GreedyTokens> likeliest = {};
  };

  const std::vector<int64_t>& prompt_of(size_t result) const { return prompts_[results_[result].prompt]; }

  /// A step behind the tokens that all rows have.
  Tensor decode() {
    std::vector<int64_t> tokens;
    for (const auto& row : rows_) tokens.push_back(row.sampled.ids().back());
    return batch_->decode(tokens);
  }

  /// Whether the time of the call is over, by the clock of rank 0.
  bool is_late() const {
    if (!deadline_) return false;
    std::vector<bool> late{std::chrono::steady_clock::now() >= *deadline_};
    follow_first_rank(model_->ranks, late);
    return late[0];
  }

  void end_waiting() {
    for (const auto result : waiting_) {
      results_[result].row = result;
      results_[result].finish_reason = "time";
    }
    waiting_.clear();
  }

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
      rows_.emplace_back(model_->options, tokenizer_, options_, prompt, result);
      rows_.back().result.prompt = results_[result].prompt;
      rows_.back().deadline = deadline_;
    }
    const auto logits = batch_->append(fresh);
    if (speculation_) speculation_->append(fresh);
    place_copies(first, fresh.size(), which);
    take({logits.index_select(0, at::tensor(which, at::kLong).to(logits.device()))}, first);
  }

  /// Rows of the batch in the order of rows_: a prompt that several rows have went through the model once.
  void place_copies(size_t first, size_t fresh, const std::vector<int64_t>& which) {
    if (fresh == which.size()) return;
    std::vector<int64_t> rows(first);
    std::iota(rows.begin(), rows.end(), int64_t{0});
    for (const auto each : which) rows.push_back(static_cast<int64_t>(first) + each);
    batch_->select(rows);
    if (speculation_) speculation_->select(rows);
  }

  /// Draws a token for each row from `first` on.
  void take(const Behind& step, size_t first) {
    std::vector<const SampledRow*> drawing;
    for (auto i = first; i < rows_.size(); ++i) drawing.push_back(&rows_[i].sampled);
    const auto drawn = draw(step.logits, drawing, nullptr, step.likeliest ? &*step.likeliest : nullptr);
    // The device computes on while the tokens come here, and are told.
    if (first == 0 && can_run_ahead()) ahead_ = run_ahead(drawn.ids(), drawing);
    auto tokens = drawn.wait();
    check_tokens(tokens);
    follow_first_rank(model_->ranks, tokens);
    std::vector<bool> ends;
    for (auto i = first; i < rows_.size(); ++i)
      ends.push_back(rows_[i].accept(std::move(tokens[i - first]), on_token_));
    follow_first_rank(model_->ranks, ends);
    std::vector<size_t> ended;
    for (auto i = first; i < rows_.size(); ++i) {
      if (!ends[i - first]) continue;
      ended.push_back(i);
      auto& reason = rows_[i].result.finish_reason;
      if (reason.empty()) reason = "cancelled";  // by the callback of rank 0
    }
    remove(ended);
  }

  /// The step behind tokens that are being drawn.
  Behind run_ahead(const Tensor& ids, std::span<const SampledRow* const> drawing) {
    if (!will_take_likeliest(drawing)) return {batch_->decode(ids)};
    auto [logits, tokens] = batch_->decode_greedy(ids);
    return {std::move(logits), std::move(tokens)};
  }

  /// Whether the step behind tokens that are being drawn may begin before they are known. It is in vain for rows that
  /// turn out to have ended. While prompts wait no row may: the next one would come a step late.
  bool can_run_ahead() const {
    if (!batch_->runs_ahead() || speculation_) return false;
    size_t ended = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].sampled.new_tokens() + 1 >= rows_[i].most) ++ended;
      // The last token has no position where the context ends.
      if (model_->options.bounded() && batch_->length(static_cast<int64_t>(i)) >= model_->options.max_positions)
        return false;
    }
    if (waiting_.empty()) return ended < rows_.size();
    const bool ends_are_known = options_.eos_token_ids.empty() && options_.stop.empty() && !on_token_;
    return ended == 0 && ends_are_known && batch_->room() == 0;
  }

  /// Guesses the next tokens of each row, and takes those that the model agrees with, and one more.
  void take_guessed() {
    std::vector<const SampledRow*> drawing;
    std::vector<int64_t> most, before;
    for (const auto& row : rows_) {
      drawing.push_back(&row.sampled);
      most.push_back(row.most - row.sampled.new_tokens() - 1);  // without the one behind the guesses
    }
    const auto guesses = speculation_->guess(drawing, most);
    for (int64_t i = 0; i < batch_->size(); ++i) before.push_back(batch_->length(i));
    auto taken = agreed(batch_->decode_several(guesses.tokens(drawing)), drawing, guesses);
    std::vector<size_t> ended;
    for (size_t i = 0; i < rows_.size(); ++i) {
      auto& result = rows_[i].result;
      result.guessed_tokens += static_cast<int64_t>(guesses.ids[i].size());
      result.taken_tokens += static_cast<int64_t>(taken[i].size()) - 1;
      const auto length = before[i] + static_cast<int64_t>(taken[i].size());
      batch_->truncate(static_cast<int64_t>(i), length);
      speculation_->truncate(static_cast<int64_t>(i), length);
      for (auto& token : taken[i]) {
        LEVIN_CHECK(token.error.empty(), token.error);
        if (!rows_[i].accept(std::move(token), on_token_)) continue;
        ended.push_back(i);
        break;
      }
    }
    remove(ended);
  }

  /// Rows in rising order.
  void remove(const std::vector<size_t>& ended) {
    std::vector<int64_t> kept(rows_.size());  // by the places of the step that runs ahead
    std::iota(kept.begin(), kept.end(), int64_t{0});
    for (auto i = ended.rbegin(); i != ended.rend(); ++i) {
      auto& result = rows_[*i].result;
      const auto row = result.row;
      results_[row] = std::move(result);
      batch_->remove(static_cast<int64_t>(*i));
      if (speculation_) speculation_->remove(static_cast<int64_t>(*i));
      if (*i + 1 < rows_.size()) rows_[*i] = std::move(rows_.back());
      rows_.pop_back();
      kept[*i] = kept.back();
      kept.pop_back();
    }
    if (ended.empty() || !ahead_.logits.defined()) return;
    const auto logits = std::exchange(ahead_, {}).logits;
    if (rows_.empty()) return;
    const auto index = at::tensor(kept, at::kLong).to(logits.device(), /*non_blocking=*/true);
    ahead_.logits = logits.index_select(0, index);
  }

  models::Decoder model_;
  const text::Tokenizer* tokenizer_;
  const Prompts& prompts_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  RunAhead run_ahead_;
  std::shared_ptr<GraphDevice> graph_device_;
  std::vector<Generated> results_;
  std::vector<size_t> waiting_;
  std::optional<DecodeBatch> batch_;
  std::unique_ptr<Speculation> speculation_;
  std::vector<GeneratedRow> rows_;  // as in the batch
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  Behind ahead_;  // of the last tokens of all rows, where it has been asked for
};

}  // namespace

std::vector<Generated> generated(models::Decoder model, const text::Tokenizer* tokenizer, const Prompts& prompts,
                                 const GenerateOptions& options, const OnToken& on_token, RunAhead run_ahead,
                                 const std::shared_ptr<GraphDevice>& graph_device) {
  check_model(model);
  check_options(options);
  LEVIN_CHECK(tokenizer || options.stop.empty(), "[generate] stop strings need a tokenizer");
  for (size_t i = 0; i < prompts.size(); ++i) check_prompt(model->options, prompts[i], "prompt " + std::to_string(i));
  if (options.draft) check_draft(model->options, options.draft, prompts);
  const c10::AutoGradMode no_grad(false);
  const EvalScope eval(model);
  std::optional<EvalScope> draft_eval;
  if (options.draft) draft_eval.emplace(options.draft);
  if (options.num_beams > 1) return generate_beams(model, tokenizer, prompts, options, on_token);
  LEVIN_CHECK(!options.paged || !model->ranks, "[generate] a model that ranks have together does not go with `paged`");
  LEVIN_CHECK(!model->ranks || (options.prompt_lookup == 0 && !options.draft),
              "[generate] a model that ranks have together does not go with `prompt_lookup` or `draft`");
  if (options.paged) return generate_paged(model, tokenizer, prompts, options, on_token);
  if (on_token && !is_first_rank(model->ranks)) {
    // Rank 0 decides whether rows continue.
    const OnToken told = [&](const GeneratedToken& token) { return on_token(token), true; };
    return GenerateRun(model, tokenizer, prompts, options, told, run_ahead, graph_device).run();
  }
  return GenerateRun(model, tokenizer, prompts, options, on_token, run_ahead, graph_device).run();
}

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

std::vector<std::vector<int64_t>> word_ids(const text::Tokenizer& tokenizer, std::span<const std::string> words) {
  std::vector<std::vector<int64_t>> all;
  for (const auto& word : words)
    for (const auto& text : {word, " " + word}) {
      auto ids = tokenizer.encode(text, {.add_special_tokens = false, .tokens = false, .offsets = false}).ids;
      LEVIN_CHECK(!word.empty() && !ids.empty(), "[generate] the word \"", shown(word), "\" has no tokens");
      if (std::ranges::count(all, ids) == 0) all.push_back(std::move(ids));
    }
  return all;
}

}  // namespace levin
