#include "levin/text/learned_tokens.h"

#include <algorithm>

#include "levin/core/error.h"

namespace levin::text {
namespace {

/// Offsets of tokens count code points.
uint32_t code_points(std::string_view text) {
  return static_cast<uint32_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

/// Tokens of the text that begin in one of the spans, which are in code points; with `overlap` also one that reaches
/// into it.
LearnedTokens tokens_in_spans(Encoding encoding, const std::vector<Span>& spans, bool overlap = false) {
  LearnedTokens result{.ids = std::move(encoding.ids), .learned = std::vector<uint8_t>(encoding.offsets.size())};
  for (size_t i = 0; i < encoding.offsets.size(); ++i) {
    const auto& place = encoding.offsets[i];
    if (encoding.special_mask[i]) continue;
    result.learned[i] = std::any_of(spans.begin(), spans.end(), [&](const Span& span) {
      return (overlap ? place.end > span.begin : place.begin >= span.begin) && place.begin < span.end;
    });
  }
  return result;
}

}  // namespace

LearnedTokens completion_tokens(const Tokenizer& tokenizer, std::string_view prompt, std::string_view completion) {
  const auto whole = std::string(prompt) + std::string(completion);
  auto result =
      tokens_in_spans(tokenizer.encode(whole, {.tokens = false}), {{code_points(prompt), code_points(whole)}});
  const auto& eos = tokenizer.config().eos_token;
  const auto id = eos ? tokenizer.token_to_id(*eos) : std::nullopt;
  if (!id) return result;
  if (result.ids.empty() || result.ids.back() != *id) result.ids.push_back(*id), result.learned.push_back(1);
  result.learned.back() = 1;
  return result;
}

LearnedTokens chat_tokens(const Tokenizer& tokenizer, std::span<const ChatMessage> messages) {
  std::vector<Span> generated, spans;
  const auto whole = apply_chat_template(tokenizer, messages, /*add_generation_prompt=*/false, &generated);
  const auto encoded = [&] { return tokenizer.encode(whole, {.add_special_tokens = false, .tokens = false}); };
  for (const auto& [begin, end] : generated)
    spans.push_back({code_points(whole.substr(0, begin)), code_points(whole.substr(0, end))});
  if (!spans.empty()) return tokens_in_spans(encoded(), spans, /*overlap=*/true);  // as transformers does it
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != "assistant") continue;
    const auto before = apply_chat_template(tokenizer, messages.first(i), /*add_generation_prompt=*/true);
    const auto with = apply_chat_template(tokenizer, messages.first(i + 1), /*add_generation_prompt=*/false);
    LEVIN_CHECK(with.starts_with(before) && whole.starts_with(with), "[chat_tokens] the chat template renders turn ",
                i + 1, " in another way than alone, so that it cannot be told what the assistant said");
    spans.push_back({code_points(before), code_points(with)});
  }
  return tokens_in_spans(encoded(), spans);
}

}  // namespace levin::text
