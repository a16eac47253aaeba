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

/// HTTP/1.1: one thread for all connections, which only reads and writes, and workers for what takes time. All limits
/// are here; what is served is not.
namespace levin::serve {

struct HttpOptions {
  std::string host = "127.0.0.1";
  /// Port that is listened on; 0: any that is free.
  int port = 8000;
  /// Connections that are served at once; as many more wait, further ones get a 503.
  size_t max_connections = 256;
  size_t max_body_bytes = size_t{4} << 20;
  /// Time of a whole request, header and body, from its first byte.
  std::chrono::milliseconds read_timeout = std::chrono::seconds(30);
  /// Time in which a client must take something.
  std::chrono::milliseconds write_timeout = std::chrono::seconds(30);
  /// Time between two requests of a connection.
  std::chrono::milliseconds idle_timeout = std::chrono::seconds(10);
};

struct HttpRequest {
  std::string method, path, authorization, api_key, host, origin, body;
};

struct HttpResponse {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// The way back to the client of a request, from any thread. Calls after the client has left do nothing.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;

  /// Sends the whole answer, once.
  virtual void answer(HttpResponse response) = 0;
  /// Sends the head of an answer (`body` is not sent), whose body then comes in parts.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string part) = 0;
  virtual void end() = 0;
  /// Calls `left` once, in the thread of connections, where the client leaves before all is sent; at once if it has
  /// left.
  virtual void when_left(std::function<void()> left) = 0;
};

struct HttpHandlers {
  /// Refuses a request before its body is read, or gives nothing.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> admit;
  /// Answers in the thread of connections, or later from another thread.
  std::function<void(const HttpRequest&, const std::shared_ptr<HttpExchange>&)> serve;
  /// The answer for a status that HTTP itself gives: 400, 404, 405, 408, 413, 414, 415, 417, 431, 500, 503, 505.
  std::function<HttpResponse(const HttpRequest&, int status)> refuse;
};

/// The only name of http.cpp that is seen outside of the library.
class __attribute__((visibility("default"))) HttpServer {
 public:
  /// Binds the port: an Error of one line where it cannot. `routes`: method and path of what `serve` gets; a last
  /// segment of "*" stands for any one.
  HttpServer(const HttpOptions& options, std::vector<std::pair<std::string, std::string>> routes,
             HttpHandlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  /// Serves until stop(), and until what was answered is sent. The calling thread is that of connections.
  void run();
  /// From any thread.
  void stop();

  /// Runs a function in the thread of connections. From any thread, as the next two.
  void post(std::function<void()> function);
  /// The same after a time.
  void post_after(std::chrono::milliseconds time, std::function<void()> function);
  /// Runs a function in one of a few worker threads.
  void work(std::function<void()> function);
  /// Requests whose answers are not sent yet.
  size_t busy() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace levin::serve
