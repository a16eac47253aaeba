#pragma once

#include <memory>
#include <string>
#include <vector>

#include "levin/generate/serve/http.h"
#include "levin/generate/serve/metrics.h"
#include "levin/generate/serve/model_thread.h"
#include "levin/generate/serve/responses.h"

/// Answers that come from the model's thread: each is told what has come, and sends it to its client.
namespace levin::serve {

/// What answers have in common.
struct ReplyContext {
  HttpServer& http;
  ModelThread& thread;
  Metrics& metrics;
  const TokenTexts& texts;
  const std::string& model;
};

HttpResponse error_response(const ApiError& error);

class Reply : public Generation, public std::enable_shared_from_this<Reply> {
 public:
  /// Answers the client from now on; in a worker, behind ModelThread::begin().
  void open();
  void advance() final;

 protected:
  Reply(const ReplyContext& context, std::string path, std::shared_ptr<HttpExchange> exchange, size_t sequences,
        bool streamed);

  /// Tells what is new, in the thread of connections. Whether all is told.
  virtual bool tell() = 0;
  /// The body of an answer that is not streamed; in a worker.
  virtual std::string body() = 0;
  /// Sends the whole answer from a worker, or why there is none.
  void answer_whole();
  /// The last byte is on its way.
  void finish(int status);

  const ReplyContext context_;
  const std::string path_;
  const std::shared_ptr<HttpExchange> exchange_;

 private:
  virtual void begin_stream() {}

  bool is_open_ = false, is_told_ = false;
};

/// Completions and chats.
class TextReply final : public Reply {
 public:
  TextReply(const ReplyContext& context, std::string path, std::shared_ptr<HttpExchange> exchange,
            const GenerationRequest& request);

  /// Answers where the model is not asked for anything, in place of open().
  void answer_without_model();

 private:
  bool tell() override;
  std::string body() override;
  void begin_stream() override;
  /// The first events; they take long where prompts are scored.
  void begin_events();
  bool is_scoring() const { return answer_.request().echo && answer_.request().logprobs; }

  Answer answer_;
  enum class Stage { kWaiting, kBeginning, kWriting } stage_ = Stage::kWaiting;
};

class VectorReply final : public Reply {
 public:
  VectorReply(const ReplyContext& context, std::string path, std::shared_ptr<HttpExchange> exchange,
              EmbeddingRequest request);

 private:
  bool tell() override;
  std::string body() override;

  const EmbeddingRequest request_;
};

}  // namespace levin::serve
