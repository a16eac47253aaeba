#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "levin/generate/generate.h"
#include "levin/generate/generated_text.h"
#include "levin/generate/sampler.h"

namespace levin::detail {

/// Eval mode, and the mode from before at the end.
class EvalScope {
 public:
  explicit EvalScope(models::Decoder model) : model_(std::move(model)), was_training_(model_->is_training()) {
    if (was_training_) model_->eval();
  }
  ~EvalScope() {
    if (was_training_) model_->train();
  }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  models::Decoder model_;
  bool was_training_;
};

/// Throws an Error of one line where there is no model that generates.
void check_model(const models::Decoder& model);
/// Throws an Error of one line where a prompt is empty, longer than the context or has ids that the model has not;
/// `name` is what the line calls it.
void check_prompt(const models::DecoderOptions& model, const std::vector<int64_t>& prompt, const std::string& name);

/// A row from its prompt to its last token: what is drawn, its text, and why it ends.
struct GeneratedRow {
  /// `row` is the number that it draws by, and that callbacks are told. The options outlive it.
  GeneratedRow(const models::DecoderOptions& model, const text::Tokenizer* tokenizer, const GenerateOptions& options,
               const std::vector<int64_t>& prompt, size_t row);

  /// Takes a token in and tells it. Whether the row ends with it: result.finish_reason says why.
  bool accept(SampledToken token, const OnToken& on_token);

  SampledRow sampled;
  GeneratedText text;
  /// New tokens at most.
  int64_t most;
  /// The end of max_time; by default it counts from the first token on.
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  Generated result;

 private:
  bool is_late();
};

/// The point in time that is max_time seconds later.
inline std::chrono::steady_clock::time_point end_of_time(std::chrono::steady_clock::time_point begin, double max_time) {
  constexpr double kLongest = 1e9;
  return begin + std::chrono::microseconds(static_cast<int64_t>(1e6 * std::min(max_time, kLongest)));
}

}  // namespace levin::detail
