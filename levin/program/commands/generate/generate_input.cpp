#include "levin/program/commands/generate/generate_input.h"

#include <filesystem>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/program/commands/input_lines.h"
#include "levin/text/chat_template.h"

namespace levin::cli {

GenerateInput::GenerateInput(std::string folder, bool chat, int64_t vocab_size)
    : folder_(std::move(folder)), chat_(chat), vocab_size_(vocab_size) {}

const text::Tokenizer* GenerateInput::tokenizer() {
  if (!looked_) {
    looked_ = true;
    for (const auto* file : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt"})
      if (!tokenizer_ && std::filesystem::exists(std::filesystem::path(folder_) / file))
        tokenizer_ = text::Tokenizer::from_folder(folder_);
    if (tokenizer_) check_tokenizer();
  }
  return tokenizer_ ? &*tokenizer_ : nullptr;
}

void GenerateInput::check_tokenizer() const {
  // Special tokens may lie behind the embedding: a padding that was added later is common, and harmless.
  for (auto id = vocab_size_; id < tokenizer_->id_end(); ++id)
    if (const auto token = tokenizer_->id_to_token(id); token && !tokenizer_->is_special(id))
      LEVIN_CHECK(false, "[levin generate] \"", folder_, "\": the tokenizer is that of another model: \"",
                  shown(*token), "\" has the id ", id, ", the model knows 0 to ", vocab_size_ - 1);
}

const text::Tokenizer& GenerateInput::needed_tokenizer() {
  LEVIN_CHECK(tokenizer(), "[levin generate] \"", folder_,
              "\" has no tokenizer (tokenizer.json); without one prompts are JSON lines with \"ids\"");
  return *tokenizer();
}

std::vector<GeneratePrompt> GenerateInput::read(const std::string& file, bool whole_file) {
  std::vector<GeneratePrompt> prompts;
  if (whole_file) {
    const auto where = "[levin generate] " + file;
    auto text = whole_input("levin generate", file);
    check_utf8(text, where);
    prompts.push_back(of_text(std::move(text), where));
    check_ids(prompts.back(), where);
    return prompts;
  }
  read_input_lines("levin generate", file, [&](const std::string& line, const std::string& where) {
    prompts.push_back(prompt(line, where));
    check_ids(prompts.back(), where);
  });
  return prompts;
}

GeneratePrompt GenerateInput::prompt(const std::string& line, const std::string& where) {
  const auto json = JsonLine::of(line, where, R"({"prompt": "The sea"})");
  if (!json) return of_text(line, where);
  if (json->has("messages")) return of_messages(json->messages(), where);
  if (!json->has("ids")) return of_text(json->text("prompt"), where);
  GeneratePrompt prompt{.text = {}, .ids = json->ids()};
  if (json->has("prompt")) prompt.text = json->text("prompt");
  return prompt;
}

GeneratePrompt GenerateInput::of_text(std::string text, const std::string& where) {
  if (chat_) return of_messages({{"user", std::move(text)}}, where);
  GeneratePrompt prompt{.text = std::move(text), .ids = {}};
  prompt.ids = needed_tokenizer().encode(prompt.text, {.tokens = false, .offsets = false}).ids;
  LEVIN_CHECK(!prompt.ids.empty(), where, " has no tokens");
  return prompt;
}

GeneratePrompt GenerateInput::of_messages(const std::vector<std::pair<std::string, std::string>>& messages,
                                          const std::string& where) {
  std::vector<text::ChatMessage> chat;
  for (const auto& [role, content] : messages) chat.push_back({role, content});
  const auto& tokenizer = needed_tokenizer();
  GeneratePrompt prompt{.text = text::apply_chat_template(tokenizer, chat), .ids = {}};
  prompt.ids = tokenizer.encode(prompt.text, {.add_special_tokens = false, .tokens = false, .offsets = false}).ids;
  LEVIN_CHECK(!prompt.ids.empty(), where, " has no tokens");
  return prompt;
}

void GenerateInput::check_ids(const GeneratePrompt& prompt, const std::string& where) const {
  for (const auto id : prompt.ids)
    LEVIN_CHECK(id >= 0 && id < vocab_size_, where, " has the token ", id, ", the model knows 0 to ", vocab_size_ - 1,
                tokenizer_ ? "; is the tokenizer that of this model?" : "");
}

std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    if (c == '\\')
      line += "\\\\";
    else if (c == '\n')
      line += "\\n";
    else if (c == '\r')
      line += "\\r";
    else
      line += c;
  }
  return line;
}

}  // namespace levin::cli
