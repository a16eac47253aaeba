#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "levin/models/decoder.h"

namespace levin {

/// A row whose next token is chosen, for functions of a program.
struct RowTokens {
  /// The number that the row draws by.
  size_t row = 0;
  /// The prompt and the new tokens.
  std::span<const int64_t> ids = {};
  size_t prompt_length = 0;
};

/// Names and meaning are those of transformers' GenerationConfig, unless said.
struct GenerateOptions {
  /// At most; fewer where the context of the model ends.
  int64_t max_new_tokens = 128;
  /// eos_token_ids are not drawn before.
  int64_t min_new_tokens = 0;
  /// The same for prompt and text together; 0: none.
  int64_t min_length = 0;
  /// Seconds of a call, after which every row ends as "time" behind its next token; 0: no limit. Rows that have not
  /// begun then stay empty. Of a request of the engine it counts from its first token on.
  double max_time = 0;
  /// 0: the likeliest token (transformers' do_sample=False); else the logits are divided by it, and a token is drawn.
  double temperature = 1;
  /// Only the likeliest tokens (of the first 100) that together have this fraction of their entropy; 0: all.
  double top_h = 0;
  /// Only the k likeliest; 0: all.
  int64_t top_k = 0;
  /// Only the likeliest tokens that together have this probability; 1: all.
  double top_p = 1;
  /// Only tokens with this share of the probability of the likeliest one; 0: all.
  double min_p = 0;
  /// Only the tokens nearest to the expected information, that together have this probability; 1: all.
  double typical_p = 1;
  /// Only tokens with at least this probability; 0: all.
  double epsilon_cutoff = 0;
  /// Only tokens with at least this probability, or with a fraction of it where the distribution is flat; 0: all.
  double eta_cutoff = 0;
  /// Divides positive logits of the tokens so far (prompt too), multiplies negative ones.
  double repetition_penalty = 1;
  /// Subtracted from the logits of tokens that were generated (not those of the prompt): once, and for each time.
  /// As the interfaces of servers have it.
  double presence_penalty = 0, frequency_penalty = 0;
  /// No sequence of this many tokens occurs twice; 0: any may.
  int64_t no_repeat_ngram_size = 0;
  /// Multiplies positive logits of the tokens of the prompt, and divides negative ones.
  double encoder_repetition_penalty = 1;
  /// No sequence of this many tokens of the prompt occurs in the text; 0: any may.
  int64_t encoder_no_repeat_ngram_size = 0;
  /// Never drawn.
  std::vector<int64_t> suppress_tokens = {};
  /// Not drawn as the first new token.
  std::vector<int64_t> begin_suppress_tokens = {};
  /// The only token behind a prompt of one token; -1: any.
  int64_t forced_bos_token_id = -1;
  /// The only tokens that may be the last of max_new_tokens; empty: any.
  std::vector<int64_t> forced_eos_token_id = {};
  /// (start, factor): behind `start` new tokens the logits of eos_token_ids rise by |logit| (factor^more - 1).
  std::optional<std::pair<int64_t, double>> exponential_decay_length_penalty = {};
  /// Sequences of tokens that do not come (bad_words_ids): the last one is not drawn behind the others. A single token
  /// of eos_token_ids is no such word: suppress_tokens forbids it.
  std::vector<std::vector<int64_t>> bad_words = {};
  /// Tokens and what is added to their logits before anything else (sequence_bias of single tokens).
  std::vector<std::pair<int64_t, double>> logit_bias = {};
  /// Sequences of tokens, and what is added to the logits of the last one behind the others, likewise.
  std::vector<std::pair<std::vector<int64_t>, double>> sequence_bias = {};
  /// Logits that are no number become 0, infinite ones the largest or lowest number: no error ends the call.
  bool remove_invalid_values = false;
  /// Beams: scores are log probabilities again after all rules. Drawn tokens do not change by it.
  bool renormalize_logits = false;
  /// The tokens that may come next in a row (prefix_allowed_tokens_fn). Called in the thread of generate(), as the next
  /// two; what they throw passes on.
  std::function<std::vector<int64_t>(const RowTokens& row)> allowed_tokens = {};
  /// Changes scores [rows, V], float32 on the device of the model, behind all rules above and before temperature and
  /// filters (logits_processor): returns others of the same sizes, -inf for a token that may not come.
  std::function<at::Tensor(const at::Tensor& scores, std::span<const RowTokens> rows)> on_logits = {};
  /// Ends a row as "stop" behind its last token (stopping_criteria).
  std::function<bool(const RowTokens& row)> stop_when = {};
  /// Any of them ends a row.
  std::vector<int64_t> eos_token_ids = {};
  /// Any of them ends a row; the text ends before it. Needs a tokenizer.
  std::vector<std::string> stop = {};
  /// 1: no beam search. Beams need temperature 0.
  int64_t num_beams = 1;
  double length_penalty = 1;
  /// Beams: end as soon as num_beams are whole.
  bool early_stopping = false;
  /// Results of each prompt.
  int64_t num_return_sequences = 1;
  /// Row i of a call draws by (seed, first_row + i, position) whatever else is in the batch.
  uint64_t seed = 0;
  /// The number of row 0: row i draws as row first_row + i of a longer call.
  uint64_t first_row = 0;
  /// transformers' prompt_lookup_num_tokens: this many tokens are guessed at once from what followed the same tokens
  /// earlier in the row; 0: none. The model reads the guesses in one pass. Tokens are those of a run without guesses.
  int64_t prompt_lookup = 0;
  /// How many tokens at the end are looked for, at most (max_matching_ngram_size).
  int64_t prompt_lookup_ngram = 2;
  /// A smaller model of the same vocabulary that guesses draft_tokens at once. The distribution of tokens is the
  /// model's own, exactly; at temperature 0 they are the same tokens.
  models::Decoder draft = nullptr;
  int64_t draft_tokens = 5;
  /// The log probabilities of this many likeliest tokens are kept in every place.
  int64_t top_logprobs = 0;
  /// Rows that go through the model together.
  int64_t batch = 16;
  /// Tokens of prompts that go through the model together.
  int64_t prefill_chunk = 2048;
  /// On CUDA: a decode step is captured once as a graph and replayed.
  bool cuda_graphs = true;
  /// Through an engine of requests, whose cache has blocks (levin/generate/engine.h): the same results. Not with beams.
  bool paged = false;
  /// What keys and values are kept in: "auto" (the dtype of the model), "int8" or "fp8", both with a scale for each
  /// token and head.
  std::string cache_dtype = "auto";
};

/// Throws an Error of one line where a value is not allowed or two do not go together.
void check_options(const GenerateOptions& options);

/// The options with the eos_token_ids that generation_config.json of a model folder names, or config.json where the
/// other does not; those that are there already are kept.
GenerateOptions folder_generate_options(const std::filesystem::path& folder, GenerateOptions options = {});

/// What generation_config.json of a model folder asks for that changes greedy tokens and that `options` do not:
/// "repetition_penalty 1.05". transformers obeys it without being told.
std::vector<std::string> unused_generation_settings(const std::filesystem::path& folder,
                                                    const GenerateOptions& options = {});

}  // namespace levin
