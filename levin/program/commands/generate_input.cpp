#include "levin/program/commands/generate_input.h"

#include <filesystem>
#include <fstream>
#include <iostream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/text/chat_template.h"

namespace levin::cli {
namespace {

using InputJson = nlohmann::json;

const std::string& text_in(const InputJson& json, const char* key, const std::string& where) {
  LEVIN_CHECK(json.contains(key) && json[key].is_string(), where, ": \"", key, "\" is not a text");
  return json[key].get_ref<const std::string&>();
}

}  // namespace

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

std::vector<GeneratePrompt> GenerateInput::read(const std::string& file) {
  std::ifstream stream;
  if (file != "-") {
    stream.open(file);
    LEVIN_CHECK(stream && std::filesystem::is_directory(file) == false, "[levin generate] cannot read \"", file, "\"");
  }
  std::istream& source = file == "-" ? std::cin : stream;
  std::vector<GeneratePrompt> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(source, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    const auto where = fmt::format("[levin generate] {}:{}", file, number);
    prompts.push_back(prompt(line, where));
    check_ids(prompts.back(), where);
  }
  LEVIN_CHECK(!prompts.empty(), "[levin generate] \"", file, "\" has no lines");
  return prompts;
}

GeneratePrompt GenerateInput::prompt(const std::string& line, const std::string& where) {
  const auto first = line.find_first_not_of(" \t");
  if (first == std::string::npos || line[first] != '{') return of_text(line, where);
  const auto json = InputJson::parse(line, nullptr, false);
  LEVIN_CHECK(json.is_object(), where, " is not a JSON object such as {\"prompt\": \"The sea\"}");
  if (json.contains("messages")) {
    std::vector<std::pair<std::string, std::string>> messages;
    LEVIN_CHECK(json["messages"].is_array() && !json["messages"].empty(), where, ": \"messages\" is not a list");
    for (const auto& each : json["messages"]) {
      LEVIN_CHECK(each.is_object(), where, ": a message is not an object with \"role\" and \"content\"");
      messages.emplace_back(text_in(each, "role", where), text_in(each, "content", where));
    }
    return of_messages(messages, where);
  }
  if (!json.contains("ids")) return of_text(text_in(json, "prompt", where), where);
  GeneratePrompt prompt;
  LEVIN_CHECK(json["ids"].is_array() && !json["ids"].empty(), where, ": \"ids\" is not a list of integers");
  for (const auto& id : json["ids"]) {
    LEVIN_CHECK(id.is_number_integer(), where, ": ", shown(id.dump(-1, ' ', true, InputJson::error_handler_t::replace)),
                " is not an integer");
    prompt.ids.push_back(id.get<int64_t>());
  }
  if (json.contains("prompt")) prompt.text = text_in(json, "prompt", where);
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
