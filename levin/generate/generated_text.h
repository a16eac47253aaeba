#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "levin/text/tokenizer.h"

namespace levin::detail {

/// The text of tokens that come one by one: whole characters, up to the first stop string. What could be the beginning
/// of a stop string is held back until it is certain.
class GeneratedText {
 public:
  /// Without a tokenizer there is no text. `prompt` are the tokens before: blanks and bytes depend on them. `stop`
  /// outlives the object.
  GeneratedText(const text::Tokenizer* tokenizer, std::span<const int64_t> prompt,
                const std::vector<std::string>& stop);

  /// What has become certain.
  std::string push(int64_t id);
  /// The rest.
  std::string finish();
  /// Whether a stop string was found. Nothing follows.
  bool stopped() const { return stopped_; }
  /// All that was given out.
  std::string given() const { return text_.substr(0, given_); }

 private:
  std::string added(const std::string& more, bool is_last);

  std::optional<text::DecodeStream> stream_;
  const std::vector<std::string>* stop_;
  std::string text_;
  size_t given_ = 0;
  bool stopped_ = false;
};

}  // namespace levin::detail
