#include "levin/generate/serve/responses.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <ctime>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "levin/core/version.h"
#include "levin/generate/serve/api_error.h"

namespace levin::serve {
namespace {

using OrderedJson = nlohmann::ordered_json;
using TopTokens = std::vector<std::pair<int64_t, double>>;

/// Texts of a model are UTF-8; whatever is not becomes U+FFFD, so that an answer is always JSON.
std::string dumped(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string event(const OrderedJson& value) {
  return "data: " + dumped(value) + "\n\n";
}

std::string fresh_id() {
  thread_local std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return fmt::format("{:016x}{:016x}", generator(), generator());
}

int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// JSON has no infinity: a token that cannot come is as unlikely as OpenAI's own answers say it.
double finite(double logprob) {
  return std::isfinite(logprob) ? logprob : -9999.0;
}

/// The `logprobs` of a completion, token by token.
struct CompletionLogprobs {
  OrderedJson tokens = OrderedJson::array(), token_logprobs = OrderedJson::array(), top = OrderedJson::array(),
              offsets = OrderedJson::array();

  void add(const TokenTexts& texts, int64_t id, std::optional<double> logprob, const TopTokens& likeliest,
           int64_t wanted, int64_t& offset) {
    const auto text = texts(id);
    tokens.push_back(text);
    token_logprobs.push_back(logprob ? OrderedJson(finite(*logprob)) : OrderedJson());
    offsets.push_back(offset);
    offset += characters(text);
    if (wanted == 0 || !logprob) {
      top.push_back(nullptr);
      return;
    }
    auto map = OrderedJson::object();
    for (const auto& [token, value] : likeliest) map[texts(token)] = finite(value);
    map[text] = finite(*logprob);  // as OpenAI: the chosen one too
    top.push_back(std::move(map));
  }
  OrderedJson json() const {
    return {{"tokens", tokens}, {"token_logprobs", token_logprobs}, {"top_logprobs", top}, {"text_offset", offsets}};
  }
};

OrderedJson bytes_of(const std::string& text) {
  // Part of a character: its bytes are not known here.
  if (text.find("\xEF\xBF\xBD") != text.npos) return nullptr;
  auto bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

OrderedJson chat_token(const TokenTexts& texts, int64_t id, double logprob) {
  const auto text = texts(id);
  return {{"token", text}, {"logprob", finite(logprob)}, {"bytes", bytes_of(text)}};
}

OrderedJson chat_logprob(const TokenTexts& texts, int64_t id, double logprob, const TopTokens& likeliest) {
  auto token = chat_token(texts, id, logprob);
  token["top_logprobs"] = OrderedJson::array();
  for (const auto& [other, value] : likeliest) token["top_logprobs"].push_back(chat_token(texts, other, value));
  return token;
}

OrderedJson usage_json(int64_t prompt, int64_t completion) {
  return {{"prompt_tokens", prompt}, {"completion_tokens", completion}, {"total_tokens", prompt + completion}};
}

OrderedJson choice_of(const GenerationRequest& request, size_t index, const std::string& text, OrderedJson logprobs,
                      const std::string& finish_reason) {
  if (request.chat)
    return {{"index", index},
            {"message", {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}}},
            {"logprobs", std::move(logprobs)},
            {"finish_reason", finish_reason}};
  return {{"index", index}, {"text", text}, {"logprobs", std::move(logprobs)}, {"finish_reason", finish_reason}};
}

void add_prompt(CompletionLogprobs& into, const TokenTexts& texts, const std::vector<int64_t>& ids,
                const PromptScore& score, int64_t wanted, int64_t& offset) {
  // Nothing scores the first token.
  for (size_t t = 0; t < ids.size(); ++t)
    into.add(texts, ids[t], t > 0 ? std::optional(score.logprobs.at(t - 1)) : std::nullopt,
             t > 0 && wanted > 0 ? score.top_logprobs.at(t - 1) : TopTokens{}, wanted, offset);
}

std::string base64(const unsigned char* bytes, size_t count) {
  static constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((count + 2) / 3 * 4);
  for (size_t i = 0; i < count; i += 3) {
    const size_t have = std::min<size_t>(3, count - i);
    uint32_t group = static_cast<uint32_t>(bytes[i]) << 16;
    if (have > 1) group |= static_cast<uint32_t>(bytes[i + 1]) << 8;
    if (have > 2) group |= bytes[i + 2];
    for (size_t k = 0; k < 4; ++k) text += k <= have ? kLetters[(group >> (18 - 6 * k)) & 63] : '=';
  }
  return text;
}

}  // namespace

std::string error_json(int status, const std::string& message, const std::string& param, const std::string& code) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 403 ? "permission_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  const OrderedJson error{{"message", message},
                          {"type", type},
                          {"param", param.empty() ? OrderedJson() : OrderedJson(param)},
                          {"code", code.empty() ? OrderedJson() : OrderedJson(code)}};
  return dumped({{"error", error}});
}

std::string error_json(const ApiError& error) {
  return error_json(error.status(), error.what(), error.param(), error.code());
}

TokenTexts::TokenTexts(const text::Tokenizer* tokenizer) : tokenizer_(tokenizer) {
  for (int64_t id = 0; tokenizer_ && id < tokenizer_->id_end() && !before_; ++id) {
    if (tokenizer_->is_special(id)) continue;
    auto text = tokenizer_->decode(std::array{id}, false);
    const bool is_plain = !text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; });
    if (!is_plain) continue;
    before_ = id;
    before_text_ = std::move(text);
  }
}

std::string TokenTexts::operator()(int64_t id) const {
  if (!tokenizer_) return fmt::format("token_id:{}", id);
  if (before_) {
    auto text = tokenizer_->decode(std::array{*before_, id}, false);
    if (text.starts_with(before_text_)) return text.substr(before_text_.size());
  }
  return tokenizer_->decode(std::array{id}, false);
}

Answer::Answer(const GenerationRequest& request, std::string model, const TokenTexts& texts)
    : request_(request),
      id_((request.chat ? "chatcmpl-" : "cmpl-") + fresh_id()),
      model_(std::move(model)),
      created_(std::time(nullptr)),
      texts_(texts),
      sequences_(request.sequences()) {}

int64_t Answer::prompt_tokens() const {
  int64_t count = 0;
  for (const auto& prompt : request_.prompts) count += static_cast<int64_t>(prompt.size());
  return count;
}

std::string Answer::whole(const std::vector<Generated>& results) const {
  auto choices = OrderedJson::array();
  int64_t count = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& result = results[i];
    const auto prompt = i / static_cast<size_t>(request_.options.num_return_sequences);
    const auto top = [&](size_t t) { return t < result.top_logprobs.size() ? result.top_logprobs[t] : TopTokens{}; };
    count += static_cast<int64_t>(result.ids.size());
    OrderedJson logprobs;
    if (request_.logprobs && request_.chat) {
      logprobs = {{"content", OrderedJson::array()}, {"refusal", nullptr}};
      for (size_t t = 0; t < result.ids.size(); ++t)
        logprobs["content"].push_back(chat_logprob(texts_, result.ids[t], result.logprobs[t], top(t)));
    } else if (request_.logprobs) {
      CompletionLogprobs all;
      const auto wanted = request_.options.top_logprobs;
      int64_t offset = 0;
      if (request_.echo) add_prompt(all, texts_, request_.prompts[prompt], scores_.at(prompt), wanted, offset);
      for (size_t t = 0; t < result.ids.size(); ++t)
        all.add(texts_, result.ids[t], result.logprobs[t], top(t), wanted, offset);
      logprobs = all.json();
    }
    const auto text = request_.echo ? request_.echoed[prompt] + result.text : result.text;
    choices.push_back(choice_of(request_, i, text, std::move(logprobs), result.finish_reason));
  }
  return dumped({{"id", id_},
                 {"object", request_.chat ? "chat.completion" : "text_completion"},
                 {"created", created_},
                 {"model", model_},
                 {"choices", std::move(choices)},
                 {"usage", usage_json(prompt_tokens(), count)},
                 {"system_fingerprint", std::string("levin-") + kVersion}});
}

namespace {

OrderedJson chunk(const GenerationRequest& request, const std::string& id, int64_t created, const std::string& model,
                  OrderedJson choices) {
  OrderedJson json{{"id", id},
                   {"object", request.chat ? "chat.completion.chunk" : "text_completion"},
                   {"created", created},
                   {"model", model},
                   {"system_fingerprint", std::string("levin-") + kVersion},
                   {"choices", std::move(choices)}};
  if (request.include_usage) json["usage"] = nullptr;
  return json;
}

OrderedJson part(const GenerationRequest& request, size_t index, OrderedJson content, OrderedJson logprobs,
                 const std::string& finish_reason) {
  return OrderedJson::array({{{"index", index},
                              {request.chat ? "delta" : "text", std::move(content)},
                              {"logprobs", std::move(logprobs)},
                              {"finish_reason", finish_reason.empty() ? OrderedJson() : OrderedJson(finish_reason)}}});
}

}  // namespace

std::string Answer::begin() {
  std::string events;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (request_.chat) {
      events += event(chunk(request_, id_, created_, model_,
                            part(request_, i, {{"role", "assistant"}, {"content", ""}}, nullptr, "")));
    } else if (request_.echo) {
      const auto prompt = i / static_cast<size_t>(request_.options.num_return_sequences);
      OrderedJson logprobs;
      if (request_.logprobs) {
        CompletionLogprobs all;
        add_prompt(all, texts_, request_.prompts[prompt], scores_.at(prompt), request_.options.top_logprobs,
                   sequences_[i].offset);
        logprobs = all.json();
      }
      events += event(
          chunk(request_, id_, created_, model_, part(request_, i, request_.echoed[prompt], std::move(logprobs), "")));
    }
  }
  return events;
}

std::string Answer::piece(const Piece& piece) {
  auto& sequence = sequences_.at(piece.sequence);
  ++sequence.tokens;
  OrderedJson logprobs;
  if (request_.logprobs && request_.chat) {
    logprobs = {{"content", OrderedJson::array()}, {"refusal", nullptr}};
    logprobs["content"].push_back(chat_logprob(texts_, piece.id, piece.logprob, piece.top_logprobs));
  } else if (request_.logprobs) {
    CompletionLogprobs one;
    one.add(texts_, piece.id, piece.logprob, piece.top_logprobs, request_.options.top_logprobs, sequence.offset);
    logprobs = one.json();
  }
  std::string events;
  const auto send = [&](OrderedJson content, OrderedJson with, const std::string& finish) {
    events += event(chunk(request_, id_, created_, model_,
                          part(request_, piece.sequence, std::move(content), std::move(with), finish)));
  };
  const bool is_last = !piece.finish_reason.empty();
  if (!request_.chat) {
    if (!piece.text.empty() || is_last || request_.logprobs) send(piece.text, std::move(logprobs), piece.finish_reason);
    return events;
  }
  if (!piece.text.empty() || request_.logprobs) send({{"content", piece.text}}, std::move(logprobs), "");
  if (is_last) send(OrderedJson::object(), nullptr, piece.finish_reason);
  return events;
}

std::string Answer::end() {
  std::string events;
  if (request_.include_usage) {
    int64_t count = 0;
    for (const auto& sequence : sequences_) count += sequence.tokens;
    auto last = chunk(request_, id_, created_, model_, OrderedJson::array());
    last["usage"] = usage_json(prompt_tokens(), count);
    events += event(last);
  }
  return events + "data: [DONE]\n\n";
}

std::string Answer::failure(const std::string& error_json) {
  return "data: " + error_json + "\n\n";
}

std::string embeddings_json(const EmbeddingRequest& request, const std::string& model, const float* vectors,
                            int64_t width) {
  static_assert(std::endian::native == std::endian::little, "base64 embeddings are little-endian floats");
  auto data = OrderedJson::array();
  int64_t tokens = 0;
  for (size_t i = 0; i < request.rows.size(); ++i) {
    tokens += static_cast<int64_t>(request.rows[i].size());
    const auto* row = vectors + static_cast<int64_t>(i) * width;
    OrderedJson embedding;
    if (request.base64)
      embedding = base64(reinterpret_cast<const unsigned char*>(row), static_cast<size_t>(width) * sizeof(float));
    else
      embedding = std::vector<float>(row, row + width);
    data.push_back({{"object", "embedding"}, {"index", i}, {"embedding", std::move(embedding)}});
  }
  return dumped({{"object", "list"},
                 {"data", std::move(data)},
                 {"model", model},
                 {"usage", {{"prompt_tokens", tokens}, {"total_tokens", tokens}}}});
}

std::string model_json(const std::string& model, int64_t created, int64_t context) {
  OrderedJson json{{"id", model}, {"object", "model"}, {"created", created}, {"owned_by", "levin"}};
  if (context > 0) json["max_model_len"] = context;
  return dumped(json);
}

std::string models_json(const std::string& model, int64_t created, int64_t context) {
  return "{\"object\":\"list\",\"data\":[" + model_json(model, created, context) + "]}";
}

}  // namespace levin::serve
