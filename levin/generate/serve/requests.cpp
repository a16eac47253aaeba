#include "levin/generate/serve/requests.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/words.h"
#include "levin/generate/generate.h"
#include "levin/generate/serve/api_error.h"
#include "levin/text/chat_template.h"

namespace levin::serve {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kDeepest = 32;
constexpr size_t kMostStops = 16;
constexpr size_t kMostBadWords = 256;
constexpr size_t kMostMessages = 10'000;
constexpr size_t kMostVariables = 4096;
/// Texts that chat templates get of a message besides its role and content.
constexpr std::array kMessageTexts{"name", "tool_call_id", "reasoning_content"};

[[noreturn]] void refuse(const std::string& field, const std::string& message) {
  throw ApiError(400, message, field);
}

/// Brackets within brackets, counted before anything is allocated for them.
void check_depth(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) refuse({}, fmt::format("The body is nested more than {} levels deep.", kDeepest));
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

/// The object of a body, whose fields are read with their types and ranges.
class Fields {
 public:
  explicit Fields(std::string_view body) {
    check_depth(body);
    try {
      object_ = json::parse(body);
    } catch (const json::exception& error) {
      refuse({}, fmt::format("The body is not valid JSON: {}", shown(error.what())));
    }
    if (!object_.is_object()) refuse({}, "The body is not a JSON object.");
  }

  /// Null where a field is absent or null, which means the same.
  const json* find(const char* name) const {
    const auto at = object_.find(name);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  bool flag(const char* name, bool otherwise = false) const {
    const auto* value = find(name);
    if (!value) return otherwise;
    if (!value->is_boolean()) refuse(name, fmt::format("'{}' must be true or false.", name));
    return value->get<bool>();
  }

  int64_t integer(const char* name, int64_t otherwise, int64_t least, int64_t most) const {
    const auto* value = find(name);
    if (!value) return otherwise;
    if (!value->is_number_integer()) refuse(name, fmt::format("'{}' must be an integer.", name));
    // An unsigned number beyond int64 would wrap.
    const bool is_huge = value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
    const auto number = is_huge ? INT64_MAX : value->get<int64_t>();
    if (number < least || number > most || is_huge)
      refuse(name, fmt::format("'{}' is {}; it must be from {} to {}.", name, value->dump(), least, most));
    return number;
  }

  double number(const char* name, double otherwise, double least, double most) const {
    const auto* value = find(name);
    if (!value) return otherwise;
    if (!value->is_number()) refuse(name, fmt::format("'{}' must be a number.", name));
    const auto number = value->get<double>();
    if (!(number >= least && number <= most))
      refuse(name, fmt::format("'{}' is {}; it must be from {} to {}.", name, value->dump(), least, most));
    return number;
  }

  std::string text(const char* name, const std::string& otherwise = {}) const {
    const auto* value = find(name);
    if (!value) return otherwise;
    if (!value->is_string()) refuse(name, fmt::format("'{}' must be a string.", name));
    return value->get<std::string>();
  }

  /// A field that is known and would change the result, but is not supported.
  void refuse_unless_empty(const char* name, const char* why) const {
    const auto* value = find(name);
    if (value && !(value->is_structured() && value->empty()) && *value != false && *value != "")
      refuse(name, fmt::format("'{}' is not supported: {}", name, why));
  }
  /// The same where only one value asks for nothing.
  void refuse_unless(const char* name, const json& harmless, const char* why) const {
    const auto* value = find(name);
    if (value && *value != harmless) refuse(name, fmt::format("'{}' is not supported: {}", name, why));
  }

 private:
  json object_;
};

void check_model(const Fields& fields, const ServedModel& model) {
  const auto asked = fields.text("model", model.name);
  if (asked != model.name)
    throw ApiError(404, fmt::format("The model '{}' does not exist; this server has '{}'.", shown(asked), model.name),
                   "model", "model_not_found");
}

const text::Tokenizer& needed_tokenizer(const ServedModel& model, const char* field) {
  if (!model.tokenizer) refuse(field, "This model has no tokenizer: prompts are lists of token ids.");
  return *model.tokenizer;
}

void check_length(const std::vector<int64_t>& ids, const ServedModel& model, const char* field) {
  if (ids.empty()) refuse(field, fmt::format("'{}' has no tokens.", field));
  if (model.context > 0 && static_cast<int64_t>(ids.size()) > model.context)
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens, but '{}' has {} tokens.",
                               model.context, field, ids.size()),
                   field, "context_length_exceeded");
}

std::vector<int64_t> encoded(const std::string& text, const ServedModel& model, const char* field,
                             bool add_special_tokens = true) {
  const auto& tokenizer = needed_tokenizer(model, field);
  auto ids = tokenizer.encode(text, {.add_special_tokens = add_special_tokens, .tokens = false, .offsets = false}).ids;
  for (const auto id : ids)
    if (id >= model.vocab_size)
      throw ApiError(500, "The tokenizer of this folder has tokens that its model does not know.");
  return ids;
}

std::vector<int64_t> token_list(const json& list, const ServedModel& model, const char* field) {
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (const auto& item : list) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() >= static_cast<uint64_t>(model.vocab_size))
      refuse(field, fmt::format("'{}' has a token that is not an integer from 0 to {}.", field, model.vocab_size - 1));
    ids.push_back(item.get<int64_t>());
  }
  return ids;
}

/// A string, a list of strings, a list of tokens, or a list of such lists.
struct Inputs {
  std::vector<std::vector<int64_t>> ids = {};
  std::vector<std::string> texts = {};
};

Inputs inputs_of(const Fields& fields, const char* name, const ServedModel& model, int64_t most, bool keep_texts) {
  const auto* value = fields.find(name);
  if (!value) refuse(name, fmt::format("You must provide '{}'.", name));
  Inputs inputs;
  const auto add = [&](const json& item) {
    if (item.is_string()) {
      auto text = item.get<std::string>();
      inputs.ids.push_back(encoded(model.prepare ? model.prepare(text) : text, model, name));
      if (keep_texts) inputs.texts.push_back(std::move(text));
    } else if (item.is_array()) {
      inputs.ids.push_back(token_list(item, model, name));
      if (keep_texts)
        inputs.texts.push_back(model.tokenizer ? model.tokenizer->decode(inputs.ids.back(), false) : std::string());
    } else {
      refuse(name, fmt::format("'{}' must be a string, a list of strings, or lists of token ids.", name));
    }
    check_length(inputs.ids.back(), model, name);
  };
  const bool is_one = value->is_string() || (value->is_array() && !value->empty() && value->front().is_number());
  if (is_one) {
    add(*value);
    return inputs;
  }
  if (!value->is_array() || value->empty())
    refuse(name, fmt::format("'{}' must be a string, a list of strings, or lists of token ids.", name));
  if (static_cast<int64_t>(value->size()) > most)
    refuse(name, fmt::format("'{}' has {} items; at most {} are allowed.", name, value->size(), most));
  for (const auto& item : *value) add(item);
  return inputs;
}

std::vector<std::string> stops_of(const Fields& fields) {
  const auto* value = fields.find("stop");
  if (!value) return {};
  std::vector<std::string> stops;
  const auto add = [&](const json& item) {
    if (!item.is_string()) refuse("stop", "'stop' must be a string or a list of strings.");
    stops.push_back(item.get<std::string>());
    if (stops.back().empty()) refuse("stop", "'stop' has an empty string.");
  };
  if (!value->is_array())
    add(*value);
  else
    for (const auto& item : *value) add(item);
  if (stops.size() > kMostStops) refuse("stop", fmt::format("'stop' has more than {} strings.", kMostStops));
  return stops;
}

/// -100 bans a token, as it does in effect at OpenAI.
void read_logit_bias(const Fields& fields, const ServedModel& model, GenerateOptions& options) {
  const auto* value = fields.find("logit_bias");
  if (!value) return;
  if (!value->is_object()) refuse("logit_bias", "'logit_bias' must be an object of token ids and numbers.");
  for (const auto& [key, bias] : value->items()) {
    const bool is_id =
        !key.empty() && key.size() < 12 && std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
    if (!is_id || std::stoll(key) >= model.vocab_size || !bias.is_number())
      refuse("logit_bias", "'logit_bias' has a token or a bias that is not valid.");
    const auto number = bias.get<double>();
    if (!(number >= -100 && number <= 100))
      refuse("logit_bias", "'logit_bias' has a bias that is not from -100 to 100.");
    if (number == -100)
      options.suppress_tokens.push_back(std::stoll(key));
    else if (number != 0)
      options.logit_bias.emplace_back(std::stoll(key), number);
  }
}

/// Words that the text must not have.
std::vector<std::vector<int64_t>> bad_words_of(const Fields& fields, const ServedModel& model) {
  const auto* value = fields.find("bad_words");
  if (!value) return {};
  if (!value->is_array()) refuse("bad_words", "'bad_words' must be a list of strings.");
  if (value->size() > kMostBadWords) refuse("bad_words", fmt::format("'bad_words' has more than {}.", kMostBadWords));
  std::vector<std::string> words;
  for (const auto& word : *value) {
    if (!word.is_string() || word.get_ref<const std::string&>().empty())
      refuse("bad_words", "'bad_words' has something that is not a string, or an empty one.");
    words.push_back(word.get<std::string>());
  }
  return word_ids(needed_tokenizer(model, "bad_words"), words);
}

/// Another one for each request that names none.
uint64_t fresh_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

/// What completions and chats have in common.
void read_common(const Fields& fields, const ServedModel& model, GenerationRequest& request) {
  auto& o = request.options;
  o.temperature = fields.number("temperature", 1, 0, 2);
  o.top_p = fields.number("top_p", 1, 0, 1);
  if (o.top_p == 0) refuse("top_p", "'top_p' must be positive.");
  o.presence_penalty = fields.number("presence_penalty", 0, -2, 2);
  o.frequency_penalty = fields.number("frequency_penalty", 0, -2, 2);
  // Beyond OpenAI's fields; clients send them as extra ones.
  o.top_k = std::max<int64_t>(fields.integer("top_k", 0, -1, INT32_MAX), 0);
  o.min_p = fields.number("min_p", 0, 0, 1);
  o.typical_p = fields.number("typical_p", 1, 1e-6, 1);
  o.repetition_penalty = fields.number("repetition_penalty", 1, 0.01, 100);
  o.no_repeat_ngram_size = fields.integer("no_repeat_ngram_size", 0, 0, INT32_MAX);
  o.min_new_tokens = fields.integer("min_tokens", 0, 0, INT32_MAX);
  o.num_return_sequences = fields.integer("n", 1, 1, model.max_sequences);
  const auto* seed = fields.find("seed");
  o.seed = seed ? static_cast<uint64_t>(fields.integer("seed", 0, INT64_MIN, INT64_MAX)) : fresh_seed();
  o.stop = stops_of(fields);
  if (!o.stop.empty()) needed_tokenizer(model, "stop");
  read_logit_bias(fields, model, o);
  o.bad_words = bad_words_of(fields, model);
  if (!fields.flag("ignore_eos")) o.eos_token_ids = model.eos_token_ids;
  if (const auto* more = fields.find("stop_token_ids")) {
    if (!more->is_array()) refuse("stop_token_ids", "'stop_token_ids' must be a list of token ids.");
    for (const auto id : token_list(*more, model, "stop_token_ids")) o.eos_token_ids.push_back(id);
  }
  request.stream = fields.flag("stream");
  if (const auto* stream = fields.find("stream_options")) {
    if (!stream->is_object()) refuse("stream_options", "'stream_options' must be an object.");
    if (!request.stream) refuse("stream_options", "'stream_options' is for 'stream': true.");
    const auto usage = stream->value("include_usage", json(false));
    if (!usage.is_boolean()) refuse("stream_options", "'stream_options.include_usage' must be true or false.");
    request.include_usage = usage.get<bool>();
  }
}

/// The number of new tokens; by default as many as context and cache have room for.
void read_max_tokens(const Fields& fields, const ServedModel& model, const char* name, int64_t otherwise, int64_t least,
                     GenerationRequest& request) {
  size_t longest = 0;
  for (const auto& prompt : request.prompts) longest = std::max(longest, prompt.size());
  auto left = model.max_tokens;
  for (const auto room : {model.context, model.cache_tokens})
    if (room > 0) left = std::min(left, std::max<int64_t>(room - static_cast<int64_t>(longest), 1));
  const auto count = fields.integer(name, otherwise > 0 ? otherwise : left, least, INT32_MAX);
  if (count > model.max_tokens)
    refuse(name, fmt::format("'{}' is {}; this server allows {}.", name, count, model.max_tokens));
  request.score_only = count == 0;
  request.options.max_new_tokens = std::max<int64_t>(count, 1);
  request.options.min_new_tokens = std::min(request.options.min_new_tokens, request.options.max_new_tokens);
}

void check_sequences(const GenerationRequest& request, const ServedModel& model) {
  if (static_cast<int64_t>(request.sequences()) > model.max_sequences)
    refuse("n", fmt::format("{} prompts with 'n' {} are {} texts; at most {} are allowed.", request.prompts.size(),
                            request.options.num_return_sequences, request.sequences(), model.max_sequences));
}

/// What would change the text and is not there, in completions and chats alike.
void refuse_unsupported(const Fields& fields) {
  constexpr const char* kFree = "the model writes freely here; no grammar holds it.";
  for (const char* name :
       {"guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar", "json_schema"})
    fields.refuse_unless_empty(name, kFree);
  // An empty schema asks for any JSON.
  fields.refuse_unless("guided_json", nullptr, kFree);
  if (const auto* format = fields.find("response_format"))
    if (!format->is_object() || format->value("type", json()) != "text")
      refuse("response_format", "'response_format' supports {\"type\": \"text\"} only.");
  fields.refuse_unless_empty("use_beam_search", "requests are sampled.");
  fields.refuse_unless_empty("allowed_token_ids", "use 'logit_bias'.");
  fields.refuse_unless_empty("truncate_prompt_tokens", "prompts are taken whole or refused.");
  fields.refuse_unless_empty("logits_processors", "use 'logit_bias'.");
  fields.refuse_unless_empty("prompt_logprobs", "use 'echo' with 'logprobs' of /v1/completions.");
  fields.refuse_unless("num_beams", 1, "requests are sampled.");
  fields.refuse_unless("do_sample", true, "use 'temperature' 0.");
  fields.refuse_unless("skip_special_tokens", true, "texts have no special tokens.");
  fields.refuse_unless("include_stop_str_in_output", false, "texts end before what stops them.");
}

/// Tools that must not be used ask for nothing; a call that must come cannot.
void refuse_tools(const Fields& fields) {
  const auto* choice = fields.find("tool_choice");
  if (choice && *choice != "none" && *choice != "auto")
    refuse("tool_choice", "'tool_choice' supports \"none\" and \"auto\" only: this server does not parse tool calls.");
  const auto* call = fields.find("function_call");
  if (call && *call != "none" && *call != "auto")
    refuse("function_call", "'function_call' is not supported: this server does not parse tool calls.");
  if (!choice || *choice != "none") fields.refuse_unless_empty("tools", "this server does not parse tool calls.");
  if (!call || *call != "none") fields.refuse_unless_empty("functions", "this server does not parse tool calls.");
}

/// Texts are all that goes out.
void refuse_modalities(const Fields& fields) {
  if (const auto* modalities = fields.find("modalities")) {
    const bool is_text =
        modalities->is_array() && std::ranges::all_of(*modalities, [](const json& one) { return one == "text"; });
    if (!is_text) refuse("modalities", "'modalities' supports [\"text\"] only.");
  }
  fields.refuse_unless_empty("audio", "this server answers in text.");
  // An empty object of it asks for a search.
  if (fields.find("web_search_options"))
    refuse("web_search_options", "'web_search_options' is not supported: this server does not search.");
}

/// A string, or parts of which each is a text.
std::string content_of(const json& message, const std::string& where) {
  const auto at = message.find("content");
  if (at == message.end() || at->is_null()) return {};
  if (at->is_string()) return at->get<std::string>();
  if (!at->is_array())
    refuse(where + ".content", fmt::format("'{}.content' must be a string or a list of parts.", where));
  std::string text;
  for (const auto& part : *at) {
    const bool is_text =
        part.is_object() && part.value("type", json()) == "text" && part.value("text", json()).is_string();
    if (!is_text) refuse(where + ".content", fmt::format("'{}.content' has a part that is not a text.", where));
    text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

/// A message with the keys that chat templates get.
ordered_json message_of(const json& message, const std::string& where) {
  if (!message.is_object()) refuse(where, fmt::format("'{}' must be an object.", where));
  const auto role = message.value("role", json());
  if (!role.is_string()) refuse(where + ".role", fmt::format("'{}.role' must be a string.", where));
  for (const char* calls : {"tool_calls", "function_call"})
    if (message.contains(calls) && !message[calls].empty())
      refuse(fmt::format("{}.{}", where, calls), "Tool calls are not supported.");
  ordered_json known{{"role", role}, {"content", content_of(message, where)}};
  for (const char* name : kMessageTexts) {
    const auto value = message.value(name, json());
    if (value.is_null()) continue;
    if (!value.is_string())
      refuse(fmt::format("{}.{}", where, name), fmt::format("'{}.{}' must be a string.", where, name));
    known[name] = value;
  }
  return known;
}

ordered_json messages_of(const Fields& fields) {
  const auto* value = fields.find("messages");
  if (!value || !value->is_array() || value->empty()) refuse("messages", "'messages' must be a list of messages.");
  if (value->size() > kMostMessages) refuse("messages", fmt::format("'messages' has more than {}.", kMostMessages));
  auto messages = ordered_json::array();
  for (const auto& message : *value)
    messages.push_back(message_of(message, fmt::format("messages[{}]", messages.size())));
  return messages;
}

/// What a chat template gets besides messages: chat_template_kwargs, with keys in the order of the body.
ordered_json template_variables(const Fields& fields, std::string_view body) {
  constexpr const char* kName = "chat_template_kwargs";
  const auto* value = fields.find(kName);
  if (!value) return ordered_json::object();
  if (!value->is_object()) refuse(kName, fmt::format("'{}' must be an object.", kName));
  for (const char* other : {"messages", "tools", "chat_template", "tokenize"})
    if (value->contains(other)) refuse(kName, fmt::format("'{}' must not have '{}'.", kName, other));
  // Looking for a key of an ordered object takes as long as it has keys.
  bool inside = false;
  size_t keys = 0;
  const auto keep = [&](int depth, ordered_json::parse_event_t event, const ordered_json& parsed) {
    if (event != ordered_json::parse_event_t::key) return true;
    if (depth == 1)
      inside = parsed == kName;
    else if (inside && ++keys > kMostVariables)
      refuse(kName, fmt::format("'{}' has more than {} keys.", kName, kMostVariables));
    return inside;
  };
  return ordered_json::parse(body, keep)[kName];
}

}  // namespace

GenerationRequest completion_request(std::string_view body, const ServedModel& model) {
  const Fields fields(body);
  check_model(fields, model);
  fields.refuse_unless_empty("suffix", "text cannot be filled in before a suffix.");
  refuse_unsupported(fields);
  fields.refuse_unless("add_special_tokens", true, "give the prompt as token ids.");
  GenerationRequest request;
  read_common(fields, model, request);
  if (fields.integer("best_of", request.options.num_return_sequences, 1, INT32_MAX) !=
      request.options.num_return_sequences)
    refuse("best_of", "'best_of' is not supported unless it is equal to 'n'.");
  request.echo = fields.flag("echo");
  auto inputs = inputs_of(fields, "prompt", model, model.max_sequences, request.echo);
  request.prompts = std::move(inputs.ids);
  request.echoed = std::move(inputs.texts);
  if (fields.find("logprobs")) {
    request.logprobs = true;
    request.options.top_logprobs = fields.integer("logprobs", 0, 0, 20);
  }
  read_max_tokens(fields, model, "max_tokens", 16, request.echo ? 0 : 1, request);
  check_sequences(request, model);
  return request;
}

GenerationRequest chat_request(std::string_view body, const ServedModel& model) {
  const Fields fields(body);
  check_model(fields, model);
  refuse_tools(fields);
  refuse_modalities(fields);
  refuse_unsupported(fields);
  fields.refuse_unless("add_special_tokens", false, "the chat template writes them.");
  fields.refuse_unless("echo", false, "it is a field of /v1/completions.");
  fields.refuse_unless_empty("suffix", "it is a field of /v1/completions.");
  fields.refuse_unless_empty("chat_template", "chats go by the template of the model folder.");
  fields.refuse_unless_empty("documents", "pass them as 'documents' in 'chat_template_kwargs'.");
  fields.refuse_unless_empty("continue_final_message", "use /v1/completions to continue a text.");
  GenerationRequest request{.chat = true};
  read_common(fields, model, request);
  auto variables = template_variables(fields, body);
  variables["messages"] = messages_of(fields);
  if (!variables.contains("add_generation_prompt"))
    variables["add_generation_prompt"] = fields.flag("add_generation_prompt", true);
  const auto& tokenizer = needed_tokenizer(model, "messages");
  if (!tokenizer.config().chat_template)
    throw ApiError(400, "This model has no chat template; use /v1/completions.", "messages", "no_chat_template");
  std::string prompt;
  try {
    prompt = text::render_chat(tokenizer, variables.dump());
  } catch (const Error& error) {
    refuse("messages", error.what());
  }
  request.prompts.push_back(encoded(prompt, model, "messages", false));
  check_length(request.prompts.back(), model, "messages");
  request.logprobs = fields.flag("logprobs");
  request.options.top_logprobs = fields.integer("top_logprobs", 0, 0, 20);
  if (request.options.top_logprobs > 0 && !request.logprobs)
    refuse("top_logprobs", "'top_logprobs' needs 'logprobs': true.");
  read_max_tokens(fields, model, fields.find("max_completion_tokens") ? "max_completion_tokens" : "max_tokens", 0, 1,
                  request);
  check_sequences(request, model);
  return request;
}

EmbeddingRequest embedding_request(std::string_view body, const ServedModel& model) {
  const Fields fields(body);
  check_model(fields, model);
  fields.refuse_unless_empty("dimensions", "vectors have the width of the model.");
  const auto format = fields.text("encoding_format", "float");
  if (format != "float" && format != "base64")
    refuse("encoding_format", "'encoding_format' must be \"float\" or \"base64\".");
  return {.rows = inputs_of(fields, "input", model, 2048, false).ids, .base64 = format == "base64"};
}

}  // namespace levin::serve
