#include "levin/generate/generated_text.h"

#include <algorithm>
#include <string_view>

namespace levin::detail {
namespace {

/// Tokens of the prompt that the text behind it may depend on.
constexpr size_t kContext = 16;

/// How much of the end of a text could be the beginning of a stop string.
size_t uncertain_end(std::string_view text, const std::vector<std::string>& stop) {
  size_t longest = 0;
  for (const std::string_view word : stop)
    for (auto n = std::min(word.size() - 1, text.size()); n > longest; --n)
      if (text.ends_with(word.substr(0, n))) longest = n;
  return longest;
}

}  // namespace

GeneratedText::GeneratedText(const text::Tokenizer* tokenizer, std::span<const int64_t> prompt,
                             const std::vector<std::string>& stop)
    : stop_(&stop) {
  if (!tokenizer) return;
  stream_.emplace(*tokenizer);
  for (const auto id : prompt.last(std::min(prompt.size(), kContext))) stream_->step(id);
}

std::string GeneratedText::push(int64_t id) {
  return stream_ && !stopped_ ? added(stream_->step(id), false) : std::string();
}

std::string GeneratedText::finish() {
  return stream_ && !stopped_ ? added(stream_->finish(), true) : std::string();
}

std::string GeneratedText::added(const std::string& more, bool is_last) {
  text_ += more;
  auto end = std::string::npos;
  for (const auto& word : *stop_) end = std::min(end, text_.find(word, given_));
  if (end != std::string::npos) {
    text_.resize(end);
    stopped_ = true;
  }
  const auto certain = stopped_ || is_last ? text_.size() : text_.size() - uncertain_end(text_, *stop_);
  auto given = text_.substr(given_, certain - given_);
  given_ = certain;
  return given;
}

}  // namespace levin::detail
