#include "levin/generate/serve/replies.h"

#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include "levin/core/log.h"
#include "levin/core/main.h"

namespace levin::serve {

HttpResponse error_response(const ApiError& error) {
  HttpResponse response{.status = error.status(), .body = error_json(error)};
  if (error.status() == 429 || error.status() == 503) response.headers.emplace_back("Retry-After", "1");
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

Reply::Reply(const ReplyContext& context, std::string path, std::shared_ptr<HttpExchange> exchange, size_t sequences,
             bool streamed)
    : Generation(sequences, streamed), context_(context), path_(std::move(path)), exchange_(std::move(exchange)) {}

void Reply::open() {
  context_.http.post([self = shared_from_this()] {
    self->begin_stream();
    self->is_open_ = true;
    self->exchange_->when_left([self] { self->context_.thread.end(self); });
    self->advance();
  });
}

void Reply::advance() {
  if (is_open_ && !is_told_) is_told_ = tell();
}

void Reply::answer_whole() {
  context_.http.work([self = shared_from_this()] {
    HttpResponse response;
    try {
      if (const auto failed = self->failure()) throw ApiError(*failed);
      response.body = self->body();
    } catch (const ApiError& error) {
      response = error_response(error);
    } catch (const std::exception& error) {
      log_warning(fmt::format("{} has failed: {}", self->path_, one_line(error)));
      response = error_response(ApiError(500, one_line(error)));
    }
    const auto status = response.status;
    self->finish(status);
    self->exchange_->answer(std::move(response));
  });
}

void Reply::finish(int status) {
  context_.thread.end(shared_from_this());
  if (status == 499) return;  // nobody reads it
  if (const auto first = first_token())
    context_.metrics.first_token(std::chrono::duration<double>(*first - began()).count());
  context_.metrics.answered(path_, status, std::chrono::duration<double>(Clock::now() - began()).count());
}

TextReply::TextReply(const ReplyContext& context, std::string path, std::shared_ptr<HttpExchange> exchange,
                     const GenerationRequest& request)
    : Reply(context, std::move(path), std::move(exchange),
            request.score_only ? request.prompts.size() : request.sequences(), request.stream),
      answer_(request, context.model, context.texts) {}

/// Headers promise what was decided: the answer begins with 200, and a failure is an event.
void TextReply::begin_stream() {
  if (answer_.request().stream)
    exchange_->begin(
        {.content_type = "text/event-stream", .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
}

void TextReply::answer_without_model() {
  auto text = answer_.request().stream ? answer_.begin() + answer_.end() : body();
  context_.metrics.answered(path_, 200, std::chrono::duration<double>(Clock::now() - began()).count());
  exchange_->answer(
      {.body = std::move(text), .content_type = answer_.request().stream ? "text/event-stream" : "application/json"});
}

std::string TextReply::body() {
  auto results = take_results();
  if (is_scoring()) answer_.set_scores(take_scores());
  for (const auto& result : results)
    if (result.finish_reason == "cancelled") throw ApiError(503, "The request was cancelled.");
  if (answer_.request().score_only) {
    results.assign(answer_.request().sequences(), {});
    for (auto& result : results) result.finish_reason = "length";
  }
  return answer_.whole(results);
}

void TextReply::begin_events() {
  stage_ = Stage::kBeginning;
  if (!is_scoring()) {
    exchange_->write(answer_.begin());
    stage_ = Stage::kWriting;
    return;
  }
  context_.http.work([this, self = shared_from_this()] {
    answer_.set_scores(take_scores());
    context_.http.post([this, self, events = answer_.begin()] {
      exchange_->write(events);
      stage_ = Stage::kWriting;
      advance();
    });
  });
}

bool TextReply::tell() {
  if (!answer_.request().stream) {
    if (!has_ended()) return false;
    answer_whole();
    return true;
  }
  // In this order: what comes in between is told the next time.
  const bool ended = has_ended();
  const auto failed = failure();
  if (!failed && stage_ == Stage::kWaiting && is_scored()) begin_events();
  if (!failed && stage_ != Stage::kWriting) return false;
  std::string events;
  for (const auto& piece : take_pieces())
    if (stage_ == Stage::kWriting) events += answer_.piece(piece);
  if (ended) events += failed ? Answer::failure(error_json(*failed)) : answer_.end();
  exchange_->write(std::move(events));
  if (!ended) return false;
  exchange_->end();
  finish(failed && failed->status() == 499 ? 499 : 200);
  return true;
}

VectorReply::VectorReply(const ReplyContext& context, std::string path, std::shared_ptr<HttpExchange> exchange,
                         EmbeddingRequest request)
    : Reply(context, std::move(path), std::move(exchange), request.rows.size(), false), request_(std::move(request)) {}

bool VectorReply::tell() {
  if (!has_ended()) return false;
  answer_whole();
  return true;
}

std::string VectorReply::body() {
  const auto vectors = at::stack(take_vectors()).contiguous();
  int64_t tokens = 0;
  for (const auto& row : request_.rows) tokens += static_cast<int64_t>(row.size());
  context_.metrics.embedded(static_cast<int64_t>(request_.rows.size()), tokens);
  return embeddings_json(request_, context_.model, vectors.const_data_ptr<float>(), vectors.size(1));
}

}  // namespace levin::serve
