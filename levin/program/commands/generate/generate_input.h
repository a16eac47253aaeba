#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "levin/text/tokenizer.h"

namespace levin::cli {

/// A line of the input of `levin generate`.
struct GeneratePrompt {
  /// Empty for a line of ids where there is no tokenizer.
  std::string text;
  std::vector<int64_t> ids;
};

/// Prompts of a file, or of the standard input ("-"): a text a line, or JSON with "prompt", "messages" or "ids". Every
/// line is a prompt; errors name it. The tokenizer is read with the first text; a folder without one is enough for ids.
class GenerateInput {
 public:
  /// `chat`: a text is the message of a user, put into the chat template of the tokenizer.
  GenerateInput(std::string folder, bool chat, int64_t vocab_size);

  /// `whole_file`: all of the file is one text.
  std::vector<GeneratePrompt> read(const std::string& file, bool whole_file = false);
  /// Null when the folder has none.
  const text::Tokenizer* tokenizer();

 private:
  GeneratePrompt prompt(const std::string& line, const std::string& where);
  GeneratePrompt of_text(std::string text, const std::string& where);
  GeneratePrompt of_messages(const std::vector<std::pair<std::string, std::string>>& messages,
                             const std::string& where);
  void check_ids(const GeneratePrompt& prompt, const std::string& where) const;
  const text::Tokenizer& needed_tokenizer();
  /// A vocabulary larger than that of the model is refused.
  void check_tokenizer() const;

  std::string folder_;
  bool chat_;
  int64_t vocab_size_;
  bool looked_ = false;
  std::optional<text::Tokenizer> tokenizer_;
};

/// A text on one line: \ becomes \\, a newline \n, a carriage return \r.
std::string on_one_line(const std::string& text);

}  // namespace levin::cli
