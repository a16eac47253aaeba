#include "levin/generate/serve/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <limits>
#include <mutex>
#include <thread>

#include <ATen/ops/log_softmax.h>
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
#include "levin/generate/serve/requests.h"
#include "levin/generate/serve/responses.h"
#include "levin/models/language_score.h"

namespace levin {

using serve::ApiError;
using serve::HttpRequest;
using serve::HttpResponse;

namespace {

using ServeClock = std::chrono::steady_clock;

const std::vector<std::pair<std::string, std::string>> kRoutes{{"POST", "/v1/completions"},
                                                               {"POST", "/v1/chat/completions"},
                                                               {"POST", "/v1/embeddings"},
                                                               {"GET", "/v1/models"},
                                                               {"GET", "/v1/models/:model"},
                                                               {"GET", "/v1/stats"},
                                                               {"GET", "/health"},
                                                               {"GET", "/metrics"},
                                                               {"GET", "/"},
                                                               {"GET", "/page.css"},
                                                               {"GET", "/page.js"},
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

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status() == 499 ? 400 : error.status(), .body = serve::error_json(error)};
  if (error.status() == 429 || error.status() == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
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

/// Log probabilities of prompts, and of the likeliest tokens in each place.
std::vector<serve::PromptScore> score_prompts(const models::LanguageModel& model,
                                              const serve::GenerationRequest& request) {
  const auto wanted = std::min(request.options.top_logprobs, model.body().vocab_size);
  std::vector<serve::PromptScore> scores;
  // One row at a time: with outputs kept, a row has [T, V] floats.
  for (const auto& prompt : request.prompts) {
    const auto row = models::score_rows(model, std::span(&prompt, 1), {.batch = 1, .keep_outputs = wanted > 0}).at(0);
    auto& score = scores.emplace_back();
    score.logprobs.emplace_back();
    score.top_logprobs.emplace_back();
    for (const auto logprob : row.logprobs) score.logprobs.emplace_back(logprob);
    if (wanted == 0) continue;
    const auto [values, ids] = at::log_softmax(row.output, -1).topk(wanted);
    for (int64_t t = 0; t + 1 < static_cast<int64_t>(prompt.size()); ++t) {
      auto& top = score.top_logprobs.emplace_back();
      for (int64_t k = 0; k < wanted; ++k) top.emplace_back(ids[t][k].item<int64_t>(), values[t][k].item<double>());
    }
  }
  return scores;
}

}  // namespace

void check_options(const ServeOptions& options) {
  LEVIN_CHECK(options.port >= 0 && options.port <= 65535, "[levin serve] port ", options.port,
              " is not from 0 to 65535");
  LEVIN_CHECK(options.max_queue >= 0, "[levin serve] max_queue ", options.max_queue, " is negative");
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
            .serve = [this](const HttpRequest& request) { return answer(request); },
            .refuse = [this](const HttpRequest& request, int status) { return refuse(request, status); }});
    const auto most = static_cast<size_t>(options.engine.max_rows + options.max_queue);
    if (model.decoder) {
      auto engine_options = options.engine;
      engine_options.max_queue = static_cast<int64_t>(most);
      engine = std::make_unique<Engine>(model.decoder, served.tokenizer, engine_options);
      served.cache_tokens = engine->stats().blocks_total * engine_options.block_tokens;
    }
    std::function<void(const std::string&)> on_lost;
    if (model.decoder && model.decoder->ranks) on_lost = [this](const std::string& line) { end_lost(line); };
    thread = std::make_unique<serve::ModelThread>(engine.get(), most, std::move(on_lost));
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
    const auto written = ServeClock::now() + std::chrono::seconds(1);
    while (thread->active() > 0 && ServeClock::now() < written)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    http->stop();
  }

  c10::Device device() const {
    return model.decoder ? model.decoder->tokens->weight.device() : model.module().parameters().at(0).device();
  }

  static std::string name_of(const std::filesystem::path& folder) {
    auto path = std::filesystem::absolute(folder).lexically_normal();
    if (path.filename().empty()) path = path.parent_path();
    return path.filename().empty() ? "model" : path.filename().string();
  }

  /// Before a body is read.
  std::optional<HttpResponse> admit(const HttpRequest& request) {
    try {
      check_origin(request);
      const bool is_open = request.path == "/" || request.path.starts_with("/page.") || request.path == "/icon.svg" ||
                           request.path == "/health";
      if (!options.api_key.empty() && !is_open) check_key(request.authorization);
      if (draining && request.method == "POST")
        throw ApiError(503, "The server is shutting down.", {}, "shutting_down");
    } catch (const ApiError& error) {
      metrics.answered("refused", error.status(), 0);
      return error_response(error);
    }
    return {};
  }

  void check_key(const std::string& authorization) const {
    constexpr std::string_view kBearer = "Bearer ";
    const bool has_key = authorization.starts_with(kBearer);
    if (!has_key || !same_key(std::string_view(authorization).substr(kBearer.size()), options.api_key))
      throw ApiError(401, has_key ? "Incorrect API key provided." : "You didn't provide an API key.", {},
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
    const auto message = status == 404   ? fmt::format("There is no {} {}.", request.method, request.path)
                         : status == 413 ? fmt::format("The body has more than {} bytes.", options.max_request_bytes)
                         : status == 414 ? std::string("The address is too long.")
                         : status == 415 ? std::string("Compressed bodies are not supported.")
                         : status >= 500 ? std::string("Something went wrong in the server.")
                                         : std::string("This is not a valid HTTP request.");
    metrics.answered("refused", status, 0);
    return error_response(ApiError(status, message));
  }

  HttpResponse answer(const HttpRequest& request) {
    const auto start = ServeClock::now();
    HttpResponse response;
    try {
      response = dispatch(request, start);
    } catch (const ApiError& error) {
      response = error_response(error);
    } catch (const std::exception& error) {
      log_warning(fmt::format("{} has failed: {}", request.path, one_line(error)));
      response = error_response(ApiError(500, one_line(error)));
    }
    if (!response.stream)
      metrics.answered(request.path.starts_with("/v1/models/") ? "/v1/models" : request.path, response.status,
                       std::chrono::duration<double>(ServeClock::now() - start).count());
    return response;
  }

  HttpResponse dispatch(const HttpRequest& request, ServeClock::time_point start) {
    const auto& path = request.path;
    if (path == "/v1/completions" || path == "/v1/chat/completions") {
      needs(model.decoder, "does not generate; it has /v1/embeddings");
      return generate(path == "/v1/completions" ? serve::completion_request(request.body, served)
                                                : serve::chat_request(request.body, served),
                      request, start);
    }
    if (path == "/v1/embeddings") {
      needs(model.encoder, "has no embeddings; it has /v1/completions");
      return {.body = embed(serve::embedding_request(request.body, served))};
    }
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
    if (path == "/health") {
      if (draining) throw ApiError(503, "The server is shutting down.", {}, "shutting_down");
      return {.body = "{\"status\":\"ok\"}"};
    }
    if (path == "/page.css") return page_response(serve::page_style(), "text/css; charset=utf-8");
    if (path == "/page.js") return page_response(serve::page_script(), "text/javascript; charset=utf-8");
    if (path == "/icon.svg") return page_response(serve::page_icon(), "image/svg+xml");
    return page_response(serve::page_html(), "text/html; charset=utf-8");
  }

  template <class T>
  void needs(const T& part, const char* why) const {
    if (!part) throw ApiError(400, fmt::format("The model '{}' {}.", served.name, why), "model", "unsupported_model");
  }

  HttpResponse generate(const serve::GenerationRequest& request, const HttpRequest& from,
                        ServeClock::time_point start) {
    std::vector<serve::PromptScore> scores;
    if (request.echo && request.logprobs && model.decoder->ranks)
      throw ApiError(400, "'echo' with 'logprobs' is not supported where several processes have the model together.",
                     "echo");
    if (request.echo && request.logprobs) thread->run([&] { scores = score_prompts(model, request); });
    auto answer = std::make_shared<serve::Answer>(request, served.name, texts, std::move(scores));
    if (request.score_only) return scored_only(request, *answer);
    const auto generation = thread->begin(request, from.socket);
    if (request.stream) return streamed(answer, generation, from.path, start);
    const Ending ending{[&] { thread->end(generation); }};
    const auto results = generation->wait();
    told_first_token(*generation);
    for (const auto& result : results)
      if (result.finish_reason == "cancelled") throw ApiError(503, "The request was cancelled.");
    return {.body = answer->whole(results)};
  }

  static HttpResponse scored_only(const serve::GenerationRequest& request, serve::Answer& answer) {
    std::vector<Generated> none(request.sequences());
    for (auto& result : none) result.finish_reason = "length";
    if (!request.stream) return {.body = answer.whole(none)};
    const auto events = answer.begin() + answer.end();
    return {.body = events, .content_type = "text/event-stream"};
  }

  /// What the headers of an answer promise was decided: it begins with 200, and a failure is an event.
  HttpResponse streamed(const std::shared_ptr<serve::Answer>& answer,
                        const std::shared_ptr<serve::Generation>& generation, const std::string& path,
                        ServeClock::time_point start) {
    const auto next = [answer, generation, begun = false](std::string& more) mutable {
      if (!begun) {
        begun = true;
        more = answer->begin();
        if (!more.empty()) return true;
      }
      try {
        std::vector<serve::Piece> pieces;
        if (!generation->take(pieces)) {
          more = answer->end();
          return false;
        }
        for (const auto& piece : pieces) more += answer->piece(piece);
        return true;
      } catch (const ApiError& error) {
        if (error.status() == 499) throw;  // nobody reads it
        more = serve::Answer::failure(serve::error_json(error));
        return false;
      }
    };
    return {.content_type = "text/event-stream",
            .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}},
            .stream = next,
            .at_end = [this, generation, path, start] {
              thread->end(generation);
              told_first_token(*generation);
              metrics.answered(path, 200, std::chrono::duration<double>(ServeClock::now() - start).count());
            }};
  }

  std::string embed(const serve::EmbeddingRequest& request) {
    at::Tensor vectors;
    thread->run([&] { vectors = models::embed_rows(model, request.rows, pooling, 32).contiguous(); });
    int64_t tokens = 0;
    for (const auto& row : request.rows) tokens += static_cast<int64_t>(row.size());
    metrics.embedded(static_cast<int64_t>(request.rows.size()), tokens);
    return serve::embeddings_json(request, served.name, vectors.const_data_ptr<float>(), vectors.size(1));
  }

  void told_first_token(const serve::Generation& generation) {
    if (const auto first = generation.first_token())
      metrics.first_token(std::chrono::duration<double>(*first - generation.began()).count());
  }

  serve::ServerNow now() const {
    serve::ServerNow values;
    values.kind = model.encoder ? "embeddings" : tokenizer && tokenizer->config().chat_template ? "chat" : "text";
    if (engine) values.engine = engine->stats();
    const auto where = device();
    const auto memory = accelerator_of(where).memory(where);
    values.memory_bytes = memory.allocated;
    values.peak_memory_bytes = memory.peak_allocated;
    values.disconnected = thread->disconnected();
    return values;
  }

  struct Ending {
    std::function<void()> function;
    ~Ending() { function(); }
  };

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
  std::unique_ptr<serve::ModelThread> thread;
};

Server::Server(models::LanguageModel model, std::optional<text::Tokenizer> tokenizer, const ServeOptions& options) {
  check_options(options);
  LEVIN_CHECK(model.decoder || model.encoder, "[levin serve] there is no model");
  state_ = std::make_unique<State>(std::move(model), std::move(tokenizer), options);
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
  state_->http->run();
  const std::lock_guard lock(state_->lost_mutex);
  LEVIN_CHECK(state_->lost.empty(), state_->lost);
}

void Server::stop() {
  state_->draining = true;
  const auto limit = ServeClock::now() + state_->options.shutdown_timeout;
  while (state_->thread->active() > 0 && ServeClock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  state_->thread->fail_all(503, "The server is shutting down.");
  // What was just answered is still being written; when the listening socket is closed, streams are cut.
  const auto written = ServeClock::now() + std::chrono::seconds(2);
  while (state_->thread->active() > 0 && ServeClock::now() < written)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  state_->http->stop();
}

EngineStats Server::stats() const {
  return state_->engine ? state_->engine->stats() : EngineStats{};
}

}  // namespace levin
