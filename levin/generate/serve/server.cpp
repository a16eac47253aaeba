#include "levin/generate/serve/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <limits>
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/devices/accelerator.h"
#include "levin/generate/serve/api_error.h"
#include "levin/generate/serve/http.h"
#include "levin/generate/serve/metrics.h"
#include "levin/generate/serve/model_thread.h"
#include "levin/generate/serve/page.h"
#include "levin/generate/serve/replies.h"
#include "levin/generate/serve/requests.h"
#include "levin/generate/serve/responses.h"

namespace levin {

using serve::ApiError;
using serve::error_response;
using serve::HttpExchange;
using serve::HttpRequest;
using serve::HttpResponse;

namespace {

using ServeClock = std::chrono::steady_clock;
/// How long /health waits for the model to come back from a pass.
constexpr std::chrono::milliseconds kHealthTime{4500}, kHealthRound{10};
/// Time for answers to be sent before connections are cut.
constexpr std::chrono::seconds kLastWords{2};

const std::vector<std::pair<std::string, std::string>> kRoutes{{"POST", "/v1/completions"},
                                                               {"POST", "/v1/chat/completions"},
                                                               {"POST", "/v1/embeddings"},
                                                               {"GET", "/v1/models"},
                                                               {"GET", "/v1/models/*"},
                                                               {"GET", "/v1/stats"},
                                                               {"GET", "/health"},
                                                               {"GET", "/metrics"},
                                                               {"GET", "/"},
                                                               {"GET", "/page.css"},
                                                               {"GET", "/page.js"},
                                                               {"GET", "/page.markdown.js"},
                                                               {"GET", "/icon.svg"}};

/// The time does not tell how much of a key was right.
bool same_key(std::string_view given, std::string_view key) {
  unsigned char differs = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i)
    differs |= static_cast<unsigned char>(given[i] ^ key[i % std::max<size_t>(key.size(), 1)]);
  return differs == 0;
}

bool is_loopback(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

/// "127.0.0.1" of "127.0.0.1:8000", "[::1]" of "[::1]:8000".
std::string_view without_port(std::string_view host) {
  const auto colon = host.rfind(':');
  return colon == host.npos || host.find(']', colon) != host.npos ? host : host.substr(0, colon);
}

HttpResponse page_response(std::string_view text, const char* type) {
  return {.body = std::string(text),
          .content_type = type,
          .headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
                       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cache-Control", "no-cache"}}};
}

}  // namespace

void check_options(const ServeOptions& options) {
  LEVIN_CHECK(options.port >= 0 && options.port <= 65535, "[levin serve] port ", options.port,
              " is not from 0 to 65535");
  LEVIN_CHECK(options.max_queue >= 0, "[levin serve] max_queue ", options.max_queue, " is negative");
  LEVIN_CHECK(options.max_queue <= options.engine.max_queue, "[levin serve] max_queue ", options.max_queue,
              " is more than engine.max_queue ", options.engine.max_queue,
              ": the engine would refuse what the server lets wait");
  LEVIN_CHECK(options.max_tokens > 0, "[levin serve] max_tokens ", options.max_tokens, " must be positive");
  LEVIN_CHECK(options.max_connections > 0 && options.max_connections <= 100'000, "[levin serve] max_connections ",
              options.max_connections, " is not from 1 to 100000");
  LEVIN_CHECK(options.max_request_bytes > 0, "[levin serve] max_request_bytes must be positive");
  LEVIN_CHECK(options.read_timeout.count() > 0 && options.shutdown_timeout.count() >= 0,
              "[levin serve] a time limit is not positive");
  for (const char c : options.api_key)
    LEVIN_CHECK(c > ' ' && c < 127, "[levin serve] the API key has a blank or a character that a header cannot have");
}

struct Server::State {
  State(models::LanguageModel opened, std::optional<text::Tokenizer> with, const ServeOptions& asked)
      : options(asked), model(std::move(opened)), tokenizer(std::move(with)), texts(tokenizer ? &*tokenizer : nullptr) {
    const auto& body = model.body();
    served.name = options.model_name.empty() ? name_of(model.folder) : options.model_name;
    served.tokenizer = tokenizer ? &*tokenizer : nullptr;
    served.vocab_size = body.vocab_size;
    served.context = body.bounded() ? body.max_positions : 0;
    served.max_tokens = options.max_tokens;
    served.max_sequences = std::max<int64_t>(1, std::min<int64_t>(128, options.engine.max_rows + options.max_queue));
    if (model.decoder && !model.folder.empty())
      served.eos_token_ids = folder_generate_options(model.folder).eos_token_ids;
    if (model.encoder) {
      const auto sentences = models::sentence_pooling(model.folder);
      pooling = sentences.value_or(models::SentencePooling{});
      if (pooling.max_tokens > 0 && (served.context == 0 || pooling.max_tokens < served.context))
        served.context = pooling.max_tokens;
      if (sentences) served.prepare = [this](const std::string& text) { return models::sentence_text(text, pooling); };
    }
    const serve::HttpOptions http_options{.host = options.host,
                                          .port = options.port,
                                          .max_connections = static_cast<size_t>(options.max_connections),
                                          .max_body_bytes = options.max_request_bytes,
                                          .read_timeout = options.read_timeout};
    // The port first: that it is taken is known before the cache is allocated.
    http = std::make_unique<serve::HttpServer>(
        http_options, kRoutes,
        serve::HttpHandlers{
            .admit = [this](const HttpRequest& request) { return admit(request); },
            .serve = [this](const HttpRequest& request,
                            const std::shared_ptr<HttpExchange>& exchange) { serve(request, exchange); },
            .refuse = [this](const HttpRequest& request, int status) { return refuse(request, status); }});
    const auto most = static_cast<size_t>(options.engine.max_rows + options.max_queue);
    if (model.decoder) {
      auto engine_options = options.engine;
      engine_options.max_queue = std::max<int64_t>(static_cast<int64_t>(most), 1);  // it counts those that just came
      engine = std::make_unique<Engine>(model.decoder, served.tokenizer, engine_options);
      served.cache_tokens = engine->stats().blocks_total * engine_options.block_tokens;
    } else {
      embeddings = std::make_unique<serve::EmbeddingRows>(model, pooling);
    }
    std::function<void(const std::string&)> on_lost;
    if (model.decoder && model.decoder->ranks) on_lost = [this](const std::string& line) { end_lost(line); };
    thread = std::make_unique<serve::ModelThread>(
        serve::ModelThread::Options{.engine = engine.get(),
                                    .embeddings = embeddings.get(),
                                    .most = most,
                                    .deliver =
                                        [this](serve::ModelThread::Generations news) {
                                          http->post([news = std::move(news)] {
                                            for (const auto& one : news) one->advance();
                                          });
                                        },
                                    .on_lost = std::move(on_lost)});
    thread->run([this, where = device()] {
      accelerator_of(where).set_device(where);
      if (engine) engine->warm_up();
    });
  }

  /// In the thread of the model: a rank is gone, and no request can be answered any more.
  void end_lost(const std::string& line) {
    {
      const std::lock_guard lock(lost_mutex);
      lost = line;
    }
    draining = true;
    wait_until_sent(std::chrono::seconds(1));
    http->stop();
  }

  /// Until every request has its answer, at most this long.
  void wait_until_sent(std::chrono::milliseconds most) const {
    const auto limit = ServeClock::now() + most;
    while (http->busy() > 0 && ServeClock::now() < limit) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  c10::Device device() const {
    return model.decoder ? model.decoder->tokens->weight.device() : model.module().parameters().at(0).device();
  }

  static std::string name_of(const std::filesystem::path& folder) {
    auto path = std::filesystem::absolute(folder).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();
    return path.filename().empty() ? "model" : path.filename().string();
  }

  /// Refuses a request before its body is read.
  std::optional<HttpResponse> admit(const HttpRequest& request) {
    try {
      check_origin(request);
      const bool is_open = request.path == "/" || request.path.starts_with("/page.") || request.path == "/icon.svg" ||
                           request.path == "/health";
      if (!options.api_key.empty() && !is_open) check_key(request);
      if (draining && request.method == "POST")
        throw ApiError(503, "The server is shutting down.", {}, "shutting_down");
    } catch (const ApiError& error) {
      metrics.answered("refused", error.status(), 0);
      return error_response(error);
    }
    return {};
  }

  /// `Authorization: Bearer KEY`, whose first word may be written in any case (RFC 9110, 11.1), or `x-api-key: KEY`.
  void check_key(const HttpRequest& request) const {
    constexpr std::string_view kBearer = "bearer ";
    auto given = std::string_view(request.authorization);
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    const bool is_bearer = std::ranges::equal(given.substr(0, kBearer.size()), kBearer, {}, lower);
    given = is_bearer ? given.substr(kBearer.size()) : std::string_view(request.api_key);
    if (is_bearer) given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
    if ((!is_bearer && given.empty()) || !same_key(given, options.api_key))
      throw ApiError(401, given.empty() ? "You didn't provide an API key." : "Incorrect API key provided.", {},
                     "invalid_api_key");
  }

  /// A page of another site must not reach this server through the browser of its user: not from its own address, and
  /// not under a name that was made to lead here.
  void check_origin(const HttpRequest& request) const {
    const auto scheme = request.origin.find("://");
    if (!request.origin.empty() && (scheme == std::string::npos || request.origin.substr(scheme + 3) != request.host))
      throw ApiError(403, "Requests from pages of other sites are not allowed.", {}, "forbidden_origin");
    if (options.api_key.empty() && is_loopback(options.host) && !request.host.empty() &&
        !is_loopback(without_port(request.host)))
      throw ApiError(403, "The Host header does not name this machine.", {}, "forbidden_host");
  }

  HttpResponse refuse(const HttpRequest& request, int status) {
    const auto message = [&]() -> std::string {
      switch (status) {
        case 404:
          return fmt::format("There is no {} {}.", request.method, request.path);
        case 405:
          return fmt::format("{} does not go with {}.", request.path, request.method);
        case 408:
          return "The request did not come in time.";
        case 413:
          return fmt::format("The body has more than {} bytes.", options.max_request_bytes);
        case 414:
          return "The address is too long.";
        case 415:
          return "Compressed bodies are not supported.";
        case 417:
          return "The header Expect asks for something that is not known.";
        case 431:
          return "The header is too long.";
        case 500:
          return "Something went wrong in the server.";
        case 503:
          return "There are too many connections.";
        case 505:
          return "Only HTTP/1.0 and HTTP/1.1 are supported.";
        default:  // 400
          return "This is not a valid HTTP request.";
      }
    }();
    metrics.answered("refused", status, 0);
    return error_response(ApiError(status, message));
  }

  /// In the thread of connections: what takes time is done in a worker, or by the model's thread.
  void serve(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    if (request.path == "/health") return tell_health(exchange);
    if (!request.body.empty() || request.method == "POST")
      http->work([this, request, exchange] { answer(request, exchange); });
    else
      answer(request, exchange);
  }

  void answer(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    const auto start = ServeClock::now();
    HttpResponse response;
    try {
      if (request.method == "POST") return ask_model(request, exchange);
      response = look_up(request);
    } catch (const ApiError& error) {
      response = error_response(error);
    } catch (const std::exception& error) {
      log_warning(fmt::format("{} has failed: {}", request.path, one_line(error)));
      response = error_response(ApiError(500, one_line(error)));
    }
    metrics.answered(request.path.starts_with("/v1/models/") ? "/v1/models" : request.path, response.status,
                     std::chrono::duration<double>(ServeClock::now() - start).count());
    exchange->answer(std::move(response));
  }

  void ask_model(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    const auto& path = request.path;
    const serve::ReplyContext context{
        .http = *http, .thread = *thread, .metrics = metrics, .texts = texts, .model = served.name};
    if (path == "/v1/embeddings") {
      needs(model.encoder, "has no embeddings; it has /v1/completions");
      const auto asked = serve::embedding_request(request.body, served);
      const auto reply = std::make_shared<serve::VectorReply>(context, path, exchange, asked);
      thread->begin(reply, asked);
      return reply->open();
    }
    needs(model.decoder, "does not generate; it has /v1/embeddings");
    const auto asked = path == "/v1/completions" ? serve::completion_request(request.body, served)
                                                 : serve::chat_request(request.body, served);
    const auto reply = std::make_shared<serve::TextReply>(context, path, exchange, asked);
    if (asked.score_only && !asked.logprobs) return reply->answer_without_model();
    thread->begin(reply, asked);
    reply->open();
  }

  HttpResponse look_up(const HttpRequest& request) {
    const auto& path = request.path;
    if (path == "/v1/models") return {.body = serve::models_json(served.name, created, served.context)};
    if (path.starts_with("/v1/models/")) {
      if (path.substr(11) != served.name)
        throw ApiError(404, fmt::format("The model does not exist; this server has '{}'.", served.name), "model",
                       "model_not_found");
      return {.body = serve::model_json(served.name, created, served.context)};
    }
    if (path == "/v1/stats") return {.body = metrics.json(served.name, now())};
    if (path == "/metrics")
      return {.body = metrics.prometheus(served.name, now()),
              .content_type = "text/plain; version=0.0.4; charset=utf-8"};
    if (path == "/page.css") return page_response(serve::page_style(), "text/css; charset=utf-8");
    if (path == "/page.js") return page_response(serve::page_script(), "text/javascript; charset=utf-8");
    if (path == "/page.markdown.js") return page_response(serve::page_markdown(), "text/javascript; charset=utf-8");
    if (path == "/icon.svg") return page_response(serve::page_icon(), "image/svg+xml");
    return page_response(serve::page_html(), "text/html; charset=utf-8");
  }

  /// Answers /health: fine when the model comes back from what it is doing now.
  void tell_health(const std::shared_ptr<HttpExchange>& exchange) {
    watch_model(exchange, thread->heartbeat(), ServeClock::now());
  }

  void watch_model(const std::shared_ptr<HttpExchange>& exchange, int64_t before, ServeClock::time_point start) {
    const auto tell = [&](HttpResponse response) {
      metrics.answered("/health", response.status, std::chrono::duration<double>(ServeClock::now() - start).count());
      exchange->answer(std::move(response));
    };
    if (draining) return tell(error_response(ApiError(503, "The server is shutting down.", {}, "shutting_down")));
    if (thread->heartbeat() != before) return tell({.body = "{\"status\":\"ok\"}"});
    if (ServeClock::now() - start > kHealthTime)
      return tell(error_response(ApiError(503, "The model does not come back.", {}, "model_stalled")));
    http->post_after(kHealthRound, [=, this] { watch_model(exchange, before, start); });
  }

  template <class T>
  void needs(const T& part, const char* why) const {
    if (!part) throw ApiError(400, fmt::format("The model '{}' {}.", served.name, why), "model", "unsupported_model");
  }

  serve::ServerNow now() const {
    serve::ServerNow values;
    values.kind = model.encoder ? "embeddings" : tokenizer && tokenizer->config().chat_template ? "chat" : "text";
    values.engine = thread->stats();
    const auto where = device();
    const auto memory = accelerator_of(where).memory(where);
    values.memory_bytes = memory.allocated;
    values.peak_memory_bytes = memory.peak_allocated;
    values.disconnected = thread->disconnected();
    return values;
  }

  const ServeOptions options;
  models::LanguageModel model;
  std::optional<text::Tokenizer> tokenizer;
  serve::TokenTexts texts;
  serve::ServedModel served;
  models::SentencePooling pooling;
  const int64_t created = std::time(nullptr);
  serve::Metrics metrics;
  std::atomic<bool> draining = false;
  std::mutex lost_mutex;
  std::string lost;
  std::unique_ptr<serve::HttpServer> http;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<serve::EmbeddingRows> embeddings;
  std::unique_ptr<serve::ModelThread> thread;
};

Server::Server(models::LanguageModel model, std::optional<text::Tokenizer> tokenizer, const ServeOptions& options) {
  check_options(options);
  LEVIN_CHECK(model.decoder || model.encoder, "[levin serve] there is no model");
  state_ = detail::ProcessBound(std::make_unique<State>(std::move(model), std::move(tokenizer), options));
}

Server::~Server() = default;

int Server::port() const {
  return state_->http->port();
}

std::string Server::url() const {
  const auto& host = state_->options.host;
  return fmt::format("http://{}:{}", host.find(':') == host.npos ? host : "[" + host + "]", port());
}

void Server::run() {
  LEVIN_CHECK(state_.is_here(), "[levin serve] this process is a fork of the one that has the server");
  state_->http->run();
  const std::lock_guard lock(state_->lost_mutex);
  LEVIN_CHECK(state_->lost.empty(), state_->lost);
}

void Server::stop() {
  LEVIN_CHECK(state_.is_here(), "[levin serve] this process is a fork of the one that has the server");
  state_->draining = true;
  state_->wait_until_sent(state_->options.shutdown_timeout);
  state_->thread->fail_all(503, "The server is shutting down.");
  state_->wait_until_sent(kLastWords);
  state_->http->stop();
}

EngineStats Server::stats() const {
  return state_->thread->stats();
}

}  // namespace levin
