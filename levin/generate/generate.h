#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/generate/options.h"
#include "levin/models/decoder.h"
#include "levin/text/tokenizer.h"

/// Continues texts with a language model.
///
///     auto model = levin::models::open_model("gpt2");
///     const auto tokenizer = levin::text::Tokenizer::from_folder("gpt2");
///     const auto rows = levin::generate(model.decoder, tokenizer, {"The sea"}, {.max_new_tokens = 32, .top_p = 0.9});
///     std::cout << rows[0].text;
namespace levin {

/// A continuation of a prompt.
struct Generated {
  /// Which prompt, and which result: what GeneratedToken::row is.
  size_t prompt = 0, row = 0;
  /// The new tokens, with the one that ended them.
  std::vector<int64_t> ids = {};
  /// The text behind the prompt, up to a stop string; empty without a tokenizer.
  std::string text = {};
  /// Of each id: its log probability under the model, before any filter; what `levin score` gives.
  std::vector<double> logprobs = {};
  /// With top_logprobs: of each id the likeliest tokens in its place, best first.
  std::vector<std::vector<std::pair<int64_t, double>>> top_logprobs = {};
  /// "stop" (a token of eos_token_ids, a stop string or stop_when), "length" (max_new_tokens, or the end of the
  /// context), "time" (max_time) or "cancelled" (the callback said so).
  std::string finish_reason = {};
  /// With prompt_lookup or a draft model: tokens that were guessed, and those of them that the model took.
  int64_t guessed_tokens = 0, taken_tokens = 0;
  /// Of a beam: the sum of its log probabilities over length^length_penalty; else 0.
  double score = 0;
};

/// One step of a row, as it comes.
struct GeneratedToken {
  /// Which result: that of prompt row / num_return_sequences.
  size_t row = 0;
  int64_t id = 0;
  double logprob = 0;
  std::span<const std::pair<int64_t, double>> top_logprobs = {};
  /// The text that has become certain with this token: whole characters, and nothing that a stop string may still take
  /// back. Often empty.
  std::string text = {};
  /// Empty until the last token of the row.
  std::string finish_reason = {};
};
/// Called for every token in the thread of generate(); false ends the row as "cancelled". An exception ends generate()
/// and passes on.
using OnToken = std::function<bool(const GeneratedToken&)>;

/// num_return_sequences results for each prompt, in the order of the prompts. A row draws by (seed, its number, the
/// position), and its company in a batch does not change it. The model runs in eval mode, where it lies, in its dtype.
std::vector<Generated> generate(models::Decoder model, const std::vector<std::vector<int64_t>>& prompts,
                                const GenerateOptions& options = {}, const OnToken& on_token = {});
/// The same with the tokenizer of the ids: fills in texts, and obeys stop strings.
std::vector<Generated> generate(models::Decoder model, const text::Tokenizer& tokenizer,
                                std::span<const std::vector<int64_t>> prompts, const GenerateOptions& options = {},
                                const OnToken& on_token = {});
/// The same for texts.
std::vector<Generated> generate(models::Decoder model, const text::Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts, const GenerateOptions& options = {},
                                const OnToken& on_token = {});

/// Words for GenerateOptions::bad_words: the tokens of each alone, and behind a blank. An Error where one has none.
std::vector<std::vector<int64_t>> word_ids(const text::Tokenizer& tokenizer, std::span<const std::string> words);

}  // namespace levin
