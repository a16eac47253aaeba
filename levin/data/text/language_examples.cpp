#include "levin/data/text/language_examples.h"

#include <set>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/data/text/json_lines.h"

namespace levin {
namespace {

namespace fs = std::filesystem;
using detail::JsonObject;

std::string filled(std::string text, const char* what, const std::string& where) {
  LEVIN_CHECK(text.find_first_not_of(" \t\r\n") != text.npos, "[data] ", where, ": the ", what, " is empty");
  return text;
}

LanguageKind kind_of(const JsonObject& object) {
  if (object.has("messages")) return LanguageKind::kChat;
  if (object.has("prompt") || object.has("completion")) return LanguageKind::kCompletion;
  if (object.has("text")) return LanguageKind::kText;
  auto keys = object.keys();
  for (auto& key : keys) key = shown(key);
  detail::fail(detail::concat("[data] ", object.where(),
                              " has neither \"text\", nor \"prompt\" and \"completion\", nor ", "\"messages\"; it has ",
                              join(keys)));
}

std::vector<std::pair<std::string, std::string>> chat_of(const JsonObject& object) {
  std::vector<std::pair<std::string, std::string>> turns;
  bool answered = false;
  for (const auto& turn : object.objects("messages")) {
    for (const auto& key : turn.keys())
      LEVIN_CHECK(key == "role" || key == "content", "[data] ", object.where(), ": a message has \"", shown(key),
                  "\"; role and content alone are understood");
    turns.emplace_back(filled(turn.text("role"), "role", object.where()), turn.text("content"));
    answered = answered || turns.back().first == "assistant";
  }
  LEVIN_CHECK(answered, "[data] ", object.where(), ": no message is of the assistant, so there is nothing to learn");
  return turns;
}

LanguageExample example_of(const JsonObject& object, LanguageKind kind) {
  LanguageExample example{.where = object.where()};
  if (kind == LanguageKind::kChat) {
    example.messages = chat_of(object);
  } else if (kind == LanguageKind::kCompletion) {
    example.prompt = object.text("prompt");
    example.completion = filled(object.text("completion"), "completion", object.where());
  } else {
    example.text = filled(object.text("text"), "text", object.where());
  }
  return example;
}

LanguageExample file_of_text(const fs::path& path) {
  const auto where = detail::concat("\"", path.string(), "\"");
  return {.text = filled(detail::plain_text(path), "text", where), .where = where};
}

}  // namespace

LanguageExamples read_language_examples(const fs::path& path) {
  LEVIN_CHECK(fs::exists(path), "[data] \"", path.string(), "\" is not there");
  LanguageExamples examples;
  if (fs::is_directory(path)) {
    std::set<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file() && detail::has_ending(entry.path(), {".txt"})) files.insert(entry.path());
    for (const auto& file : files) examples.all.push_back(file_of_text(file));
  } else if (detail::has_ending(path, {".jsonl", ".json", ".ndjson"})) {
    detail::each_json_line(path, [&](const JsonObject& object) {
      const auto kind = kind_of(object);
      if (examples.all.empty()) examples.kind = kind;
      LEVIN_CHECK(kind == examples.kind, "[data] ", object.where(), " is of another kind than the lines before it");
      examples.all.push_back(example_of(object, kind));
    });
  } else {
    examples.all.push_back(file_of_text(path));
  }
  LEVIN_CHECK(!examples.all.empty(), "[data] \"", path.string(), "\" has no texts");
  return examples;
}

}  // namespace levin
