#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace levin {

/// A sample of language data; what of it is filled tells the kind.
struct LanguageExample {
  /// A text of its own.
  std::string text = {};
  /// What is asked and what is to be answered.
  std::string prompt = {}, completion = {};
  /// A chat: role and content of each turn.
  std::vector<std::pair<std::string, std::string>> messages = {};
  /// For errors: "data.jsonl", line 3
  std::string where = {};
};

enum class LanguageKind { kText, kCompletion, kChat };

struct LanguageExamples {
  LanguageKind kind = LanguageKind::kText;
  std::vector<LanguageExample> all;
};

/// Reads a text file (one text), a folder of .txt files (one text each, by name), or JSON lines with {"text"},
/// {"prompt", "completion"} or {"messages": [{"role", "content"}, ...]}, all lines alike; each file also as .gz. Empty
/// texts, lines of another kind and keys of messages that would be ignored are Errors with the place.
LanguageExamples read_language_examples(const std::filesystem::path& path);

}  // namespace levin
