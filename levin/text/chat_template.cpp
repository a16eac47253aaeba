#include "levin/text/chat_template.h"

#include <nlohmann/json.hpp>

#include "levin/core/error.h"
#include "levin/text/jinja/jinja.h"
#include "levin/text/json_reader.h"

namespace levin::text {
namespace {

using jinja::Value;

// Builds values while JSON is read: the order of keys is kept.
class ValueReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return put(Value()); }
  bool boolean(bool value) override { return put(Value(value)); }
  bool number_integer(int64_t value) override { return put(Value(value)); }
  bool number_unsigned(uint64_t value) override {
    return put(value > INT64_MAX ? Value(static_cast<double>(value)) : Value(static_cast<int64_t>(value)));
  }
  bool number_float(double value, const std::string&) override { return put(Value(value)); }
  bool string(std::string& value) override { return put(Value(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(true); }
  bool start_array(size_t) override { return open(false); }
  bool key(std::string& name) override {
    keys_.back() = std::move(name);
    return true;
  }
  bool end_object() override {
    auto dict = std::move(dicts_.back());
    dicts_.pop_back();
    return close(Value(std::move(dict)));
  }
  bool end_array() override {
    auto list = std::move(lists_.back());
    lists_.pop_back();
    return close(Value(std::move(list)));
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  Value result;

 private:
  bool open(bool is_dict) {
    is_dict_.push_back(is_dict);
    keys_.emplace_back();
    if (is_dict)
      dicts_.emplace_back();
    else
      lists_.emplace_back();
    return true;
  }
  bool close(Value value) {
    is_dict_.pop_back();
    keys_.pop_back();
    return put(std::move(value));
  }
  bool put(Value value) {
    if (is_dict_.empty()) {
      result = std::move(value);
    } else if (is_dict_.back()) {
      auto& dict = dicts_.back();
      for (auto& [name, held] : dict) {
        if (name.string() == keys_.back()) {
          held = std::move(value);
          return true;
        }
      }
      dict.emplace_back(Value(keys_.back()), std::move(value));
    } else {
      lists_.back().push_back(std::move(value));
    }
    return true;
  }

  std::vector<bool> is_dict_;
  std::vector<std::string> keys_;
  std::vector<jinja::Dict> dicts_;
  std::vector<jinja::List> lists_;
};

}  // namespace

struct ChatTemplate::Tree {
  jinja::NodePointer root;
};

ChatTemplate::ChatTemplate(std::string_view source)
    : tree_(std::make_unique<const Tree>(Tree{jinja::parse_template(source)})) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(std::string_view variables, const ChatLimits& limits,
                                 std::vector<Span>* generated) const {
  check_json_depth(variables, "the variables of a chat template");
  ValueReader reader;
  const bool fine = nlohmann::json::sax_parse(variables, &reader) && reader.result.is_dict();
  LEVIN_CHECK(fine, "[chat template] the variables are not a JSON object");
  jinja::Interpreter interpreter(limits);
  auto text = interpreter.render(*tree_->root, reader.result.dict());
  if (generated) *generated = interpreter.generated();
  return text;
}

std::string render_chat(const Tokenizer& tokenizer, std::string_view variables, std::vector<Span>* generated) {
  const auto& config = tokenizer.config();
  LEVIN_CHECK(config.chat_template, "[chat template] the tokenizer has none; write the prompt as plain text");
  check_json_depth(variables, "the variables of a chat template");
  const auto given = nlohmann::ordered_json::parse(variables, nullptr, /*allow_exceptions=*/false);
  LEVIN_CHECK(given.is_object(), "[chat template] the variables are not a JSON object");
  nlohmann::ordered_json all = {{"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", true}};
  const auto name = [&](const char* key, const std::optional<std::string>& token) {
    if (token) all[key] = *token;
  };
  name("bos_token", config.bos_token);
  name("eos_token", config.eos_token);
  name("unk_token", config.unk_token);
  name("pad_token", config.pad_token);
  name("cls_token", config.cls_token);
  name("sep_token", config.sep_token);
  name("mask_token", config.mask_token);
  all.update(given);
  return ChatTemplate(*config.chat_template).render(all.dump(), {}, generated);
}

std::string apply_chat_template(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                bool add_generation_prompt, std::vector<Span>* generated) {
  nlohmann::json variables = {{"messages", nlohmann::json::array()}, {"add_generation_prompt", add_generation_prompt}};
  for (const auto& [role, content] : messages) variables["messages"].push_back({{"role", role}, {"content", content}});
  std::string text;
  try {
    text = variables.dump();
  } catch (const nlohmann::json::exception&) {
    throw Error("[chat template] a message is not UTF-8");
  }
  return render_chat(tokenizer, text, generated);
}

}  // namespace levin::text
