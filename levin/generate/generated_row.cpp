#include "levin/generate/generated_row.h"

#include <algorithm>

#include "levin/core/error.h"
#include "levin/generate/decode_batch.h"

namespace levin::detail {

void check_model(const models::Decoder& model) {
  LEVIN_CHECK(model, "[generate] there is no decoder (an encoder does not generate)");
  LEVIN_CHECK(model->head, "[generate] the model classifies sequences; a causal language model is needed");
}

void check_prompt(const models::DecoderOptions& model, const std::vector<int64_t>& prompt, const std::string& name) {
  LEVIN_CHECK(!prompt.empty(), "[generate] ", name, " has no tokens");
  const auto length = static_cast<int64_t>(prompt.size());
  LEVIN_CHECK(!model.bounded() || length <= model.max_positions, "[generate] ", name, " has ", length,
              " tokens, the context of the model has ", model.max_positions);
  for (const auto id : prompt)
    LEVIN_CHECK(id >= 0 && id < model.vocab_size, "[generate] ", name, " has the id ", id, "; the model has 0 to ",
                model.vocab_size - 1);
}

GeneratedRow::GeneratedRow(const models::DecoderOptions& model, const text::Tokenizer* tokenizer,
                           const GenerateOptions& options, const std::vector<int64_t>& prompt, size_t row)
    : sampled(options, prompt, options.first_row + row),
      text(tokenizer, prompt, options.stop),
      most(most_new_tokens(model, options, static_cast<int64_t>(prompt.size()))) {
  result.row = row;
}

bool GeneratedRow::is_late() {
  const auto limit = sampled.options().max_time;
  if (limit <= 0) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!deadline) deadline = end_of_time(now, limit);
  return now >= *deadline;
}

bool GeneratedRow::accept(SampledToken token, const OnToken& on_token) {
  const auto& options = sampled.options();
  sampled.push(token.id);
  result.ids.push_back(token.id);
  result.logprobs.push_back(token.logprob);
  std::string more;
  if (std::ranges::count(options.eos_token_ids, token.id) > 0)
    result.finish_reason = "stop";
  else
    more = text.push(token.id);
  if (text.stopped())
    result.finish_reason = "stop";
  else if (result.finish_reason.empty() && sampled.new_tokens() >= most)
    result.finish_reason = "length";
  if (result.finish_reason.empty() && options.stop_when && options.stop_when(sampled.view()))
    result.finish_reason = "stop";
  if (result.finish_reason.empty() && is_late()) result.finish_reason = "time";
  if (!result.finish_reason.empty()) more += text.finish();
  if (text.stopped()) result.finish_reason = "stop";
  result.text += more;
  if (on_token &&
      !on_token({.row = result.row,
                 .id = token.id,
                 .logprob = token.logprob,
                 .top_logprobs = token.top,
                 .text = more,
                 .finish_reason = result.finish_reason}) &&
      result.finish_reason.empty())
    result.finish_reason = "cancelled";
  if (options.top_logprobs > 0) result.top_logprobs.push_back(std::move(token.top));
  return !result.finish_reason.empty();
}

}  // namespace levin::detail
