#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "levin/core/worker_thread.h"
#include "levin/generate/engine.h"
#include "levin/models/folder.h"
#include "levin/models/sentence_embedding.h"
#include "levin/text/tokenizer.h"

namespace levin {

struct ServeOptions {
  /// Only this machine by default. "0.0.0.0": every network of it.
  std::string host = "127.0.0.1";
  /// 0: any that is free.
  int port = 8000;
  /// What clients must send as `Authorization: Bearer KEY`; empty: nothing.
  std::string api_key = {};
  /// Under which clients ask for the model; empty: the name of its folder.
  std::string model_name = {};
  EngineOptions engine = {};
  /// Texts that wait beside engine.max_rows that run; a request for more is refused with 429. At most engine.max_queue.
  int64_t max_queue = 256;
  /// New tokens of a request at most.
  int64_t max_tokens = 4096;
  /// Connections that are served at once; as many more wait, and further ones get a 503.
  int64_t max_connections = 256;
  /// Bytes of the body of a request.
  uint64_t max_request_bytes = uint64_t{4} << 20;
  /// For a request to come in whole.
  std::chrono::seconds read_timeout{30};
  /// For requests that run when stop() is called.
  std::chrono::seconds shutdown_timeout{30};
};

/// Throws an Error of one line where a value is not allowed.
void check_options(const ServeOptions& options);

/// A model behind HTTP, for the clients of OpenAI's interface: /v1/completions, /v1/chat/completions, /v1/embeddings,
/// /v1/models, /health, /metrics, and a page to chat at /. A decoder generates, an encoder embeds.
///
///     levin::Server server(levin::models::open_model("gpt2"), levin::text::Tokenizer::from_folder("gpt2"));
///     std::cout << server.url() << std::endl;
///     server.run();
class Server {
 public:
  /// Binds the port: an Error of one line where it is taken. Without a tokenizer prompts are tokens. Where ranks have
  /// the model together, rank 0 has the server and the others call follow_engine().
  Server(models::LanguageModel model, std::optional<text::Tokenizer> tokenizer, const ServeOptions& options = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// "http://127.0.0.1:8000"
  std::string url() const;
  /// Serves until stop(). Throws an Error where a rank is lost that has the model together with this one.
  void run();
  /// From any thread, and once: new requests are refused with 503, those that run end within shutdown_timeout, then
  /// run() returns.
  void stop();
  EngineStats stats() const;

 private:
  struct State;
  detail::ProcessBound<State> state_;
};

}  // namespace levin
