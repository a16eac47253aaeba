#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// HTTP/1.1 on a thread for each connection. All limits are here; what is served is not.
namespace levin::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  /// 0: any that is free.
  int port = 8000;
  /// Connections that are served at once; as many more wait, further ones are closed.
  size_t max_connections = 256;
  size_t max_body_bytes = size_t{4} << 20;
  /// For a whole request, header and body, from its first byte.
  std::chrono::seconds read_timeout{30};
  /// For a client that takes nothing.
  std::chrono::seconds write_timeout{30};
  /// Between two requests of a connection.
  std::chrono::seconds idle_timeout{10};
};

struct HttpRequest {
  std::string method, path, authorization, host, origin, body;
  /// To watch whether the client is still there; not to be read or written.
  int socket = -1;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
  /// In place of `body`: called until it returns false, for the next bytes to send (`more` is empty at a call). An
  /// exception closes the connection.
  std::function<bool(std::string& more)> stream = {};
  /// Called in any case when all is sent, or the client has left; the socket is still open.
  std::function<void()> at_end = {};
};

struct HttpHandlers {
  /// Before the body of a request is read: what refuses it, or nothing.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> admit;
  std::function<HttpResponse(const HttpRequest&)> serve;
  /// The body for a status that HTTP itself gives: 400, 404, 413, 414, 500.
  std::function<HttpResponse(const HttpRequest&, int status)> refuse;
};

class HttpServer {
 public:
  /// Binds the port: an Error of one line where it cannot. `routes`: method and path of what `serve` gets.
  HttpServer(const HttpOptions& options, const std::vector<std::pair<std::string, std::string>>& routes,
             HttpHandlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// Serves until stop(), and until all connections have ended.
  void run();
  /// From any thread.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin::serve
