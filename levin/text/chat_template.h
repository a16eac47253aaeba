#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "levin/text/tokenizer.h"

namespace levin::text {

struct ChatMessage {
  std::string role;
  std::string content;
};

/// How much a template may do. A published one needs a small part of it.
struct ChatLimits {
  uint64_t steps = 2'000'000;
  /// Bytes of all texts that are made, the result among them.
  uint64_t bytes = uint64_t{64} << 20;
  /// Calls within calls.
  int depth = 60;
};

/// The Jinja template that makes one text of a chat, as transformers renders it: the blanks around blocks are trimmed,
/// lists and dicts do not change. It reaches nothing but its variables.
///
///     const ChatTemplate chat(*tokenizer.config().chat_template);
///     const auto text = chat.render(R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt":
///     true})");
///
/// What is wrong is an Error with the line: `[chat template] line 3: ...`.
class ChatTemplate {
 public:
  /// A template that cannot be read, or that uses what is not known, is an Error.
  explicit ChatTemplate(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// `variables` is a JSON object: messages, tools, add_generation_prompt, bos_token and what else the template reads.
  /// `generated` gets the bytes of the result that stand in {% generation %}.
  std::string render(std::string_view variables, const ChatLimits& limits = {},
                     std::vector<Span>* generated = nullptr) const;

  struct Tree;

 private:
  std::unique_ptr<const Tree> tree_;
};

/// The text of a chat by the tokenizer's own template, with its special tokens as variables. It holds the bos token
/// already: encode it with `add_special_tokens = false`.
std::string apply_chat_template(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                bool add_generation_prompt = true, std::vector<Span>* generated = nullptr);

/// The same of all variables of the template, a JSON object: messages with whatever keys they have, and what
/// transformers takes as further arguments ("enable_thinking"). Of those that are missing, `tools` and `documents` are
/// none, and `add_generation_prompt` is true.
std::string render_chat(const Tokenizer& tokenizer, std::string_view variables, std::vector<Span>* generated = nullptr);

}  // namespace levin::text
