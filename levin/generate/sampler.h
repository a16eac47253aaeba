#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Event.h>

#include "levin/generate/options.h"
#include "levin/kernels/decode/greedy.h"

namespace levin::detail {

using at::Tensor;

/// The tokens of a row so far, and how its next one is chosen.
class SampledRow {
 public:
  /// `number` is the row that random numbers belong to. The options outlive the row.
  SampledRow(const GenerateOptions& options, std::vector<int64_t> prompt, uint64_t number);

  void push(int64_t id);
  const GenerateOptions& options() const { return *options_; }
  /// Prompt and new tokens.
  const std::vector<int64_t>& ids() const { return ids_; }
  int64_t new_tokens() const { return static_cast<int64_t>(ids_.size()) - prompt_length_; }
  int64_t prompt_length() const { return prompt_length_; }
  uint64_t number() const { return number_; }
  /// With penalties: how often each token was generated; tokens of the prompt are there, with 0.
  const std::unordered_map<int64_t, int64_t>& counts() const { return counts_; }
  /// Tokens that may not come next, but for those that options suppress.
  std::vector<int64_t> forbidden() const;
  /// Tokens that options suppress here.
  std::vector<int64_t> suppressed() const;
  /// The only tokens that may come next; empty: any.
  std::vector<int64_t> forced() const;
  bool has_penalties() const;
  /// What functions of a program are told.
  RowTokens view() const { return {.row = number_, .ids = ids_, .prompt_length = static_cast<size_t>(prompt_length_)}; }

 private:
  const GenerateOptions* options_;
  std::vector<int64_t> ids_;
  int64_t prompt_length_;
  uint64_t number_;
  std::unordered_map<int64_t, int64_t> counts_;
};

constexpr float kRemoved = -std::numeric_limits<float>::infinity();

/// Numbers on the device of `like`, without waiting for what runs there: CUDA has a copy of memory that is not pinned
/// when the call returns.
inline Tensor sent(const Tensor& host, const Tensor& like) {
  return host.to(like.device(), /*non_blocking=*/true);
}
template <class Value>
Tensor sent(const std::vector<Value>& values, const Tensor& like) {
  return sent(at::tensor(values), like);
}
/// 16-bit numbers in float.
inline Tensor in_float(const Tensor& logits) {
  return at::isReducedFloatingType(logits.scalar_type()) ? logits.to(at::kFloat) : logits;
}

/// In the error of a token where the options, not the model, leave none.
constexpr const char* kNoneAllowed = "every token is forbidden";

/// A token that was chosen. Log probabilities are of the model's own logits.
struct SampledToken {
  int64_t id = 0;
  double logprob = 0;
  std::vector<std::pair<int64_t, double>> top = {};
  /// Why there is no token: one line; else empty.
  std::string error = {};
};

/// Logits [rows, V] with biases, penalties and the rules of the options, in transformers' order; -inf for tokens that
/// may not come next. The same tensor where no rule applies, else float32. In logit_rules.cpp.
Tensor penalized(const Tensor& logits, std::span<const SampledRow* const> rows);
/// What is left after temperature, top_h, top_k, top_p, min_p, typical_p, epsilon and eta cutoff, in this order; the
/// rest is -inf.
Tensor filtered(const Tensor& scores, std::span<const SampledRow* const> rows);
/// The places of the random numbers of a position: one draws a token (or a guess), one takes the guess, one replaces
/// it.
enum class Draw { kToken, kTaking, kReplacing };
/// A token of each row by the probabilities of scores [rows, V]; the likeliest one at temperature 0. int64 [rows].
Tensor chosen(const Tensor& scores, std::span<const SampledRow* const> rows);
/// Tokens that a draft model has drawn.
struct DrawnGuesses {
  /// int64 [rows], -1 for a row without one; and what `filtered` gave for the draft, float32 [rows, V].
  Tensor ids, scores;
};
/// The next token of each row, on its way from the device.
class Drawn {
 public:
  /// int64 [rows], where the logits are: what the next step can begin with.
  const Tensor& ids() const { return ids_; }
  /// Waits until the tokens are here. One that there is not has an error.
  std::vector<SampledToken> wait() const;

 private:
  friend Drawn draw(const Tensor& logits, std::span<const SampledRow* const> rows, const DrawnGuesses* guesses,
                    const kernels::GreedyTokens* known);

  /// Of a row, as it was when its token was drawn.
  struct Place {
    uint64_t row = 0;
    size_t position = 0;
    int64_t top_logprobs = 0;
  };

  /// float64 [rows, 3 + 2 * most_]: id, log probability and score; then the likeliest ids and their log probabilities.
  void send(const Tensor& found);

  Tensor ids_, found_, host_;
  std::optional<c10::Event> arrived_;  // on CUDA
  int64_t most_ = 0;
  std::vector<Place> places_;
};

/// Draws the next token of each row without waiting for the device. With guesses each is taken, or replaced, such that
/// the tokens follow the logits alone (Leviathan et al. 2023): one that the model finds less likely than the draft is
/// taken by their ratio, else a token is drawn from what the model has more of. A token is equal to its guess where
/// that is taken, and nowhere else. `known` are the likeliest tokens of these logits, where somebody has found them:
/// they are not looked for again where they are all that is asked for.
Drawn draw(const Tensor& logits, std::span<const SampledRow* const> rows, const DrawnGuesses* guesses = nullptr,
           const kernels::GreedyTokens* known = nullptr);
/// Whether each row takes the likeliest token of the model's own logits behind one more token, whatever that one is.
bool will_take_likeliest(std::span<const SampledRow* const> rows);
/// The same, and waits.
std::vector<SampledToken> try_sample(const Tensor& logits, std::span<const SampledRow* const> rows,
                                     const DrawnGuesses* guesses = nullptr);
/// Throws the first error of some tokens, if there is one.
void check_tokens(std::span<const SampledToken> tokens);
/// try_sample and check_tokens.
std::vector<SampledToken> sample(const Tensor& logits, std::span<const SampledRow* const> rows);

}  // namespace levin::detail
