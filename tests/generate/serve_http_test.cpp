// HTTP of the server: connections that say exactly what they are told to, and answers that say what came.
#include <mutex>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "levin/generate/serve/http.h"
#include "tests/generate/http_client.h"

namespace levin::testing::serve_http_test {
namespace {

using serve::HttpExchange;
using serve::HttpRequest;
using serve::HttpResponse;
using serve::HttpServer;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ServeHttp : public ::testing::Test {
 protected:
  void start(serve::HttpOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<HttpServer>(
        options,
        std::vector<std::pair<std::string, std::string>>{
            {"POST", "/echo"}, {"POST", "/held"}, {"GET", "/stream"}, {"GET", "/models/*"}},
        serve::HttpHandlers{
            .admit = [](const HttpRequest& request) -> std::optional<HttpResponse> {
              if (request.api_key != "no") return {};
              return HttpResponse{.status = 401, .body = "no"};
            },
            .serve = [this](const HttpRequest& request,
                            const std::shared_ptr<HttpExchange>& exchange) { serve(request, exchange); },
            .refuse = [](const HttpRequest&,
                         int status) { return HttpResponse{.status = status, .body = std::to_string(status)}; }});
    running_ = std::thread([this] { server_->run(); });
  }
  void TearDown() override {
    server_->stop();
    running_.join();
  }

  void serve(const HttpRequest& request, const std::shared_ptr<HttpExchange>& exchange) {
    if (request.path == "/stream") {
      exchange->begin({.content_type = "text/plain"});
      // From another thread, as a model would.
      server_->work([exchange] {
        exchange->write("one ");
        exchange->write("two");
        exchange->end();
      });
    } else if (request.path == "/held") {
      exchange->when_left([this] { ++left_; });
      const std::lock_guard lock(mutex_);
      held_ = exchange;
    } else {
      exchange->answer({.body = request.method + " " + request.path + " " + request.body});
    }
  }
  std::shared_ptr<HttpExchange> held() {
    for (int i = 0; i < 1000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (held_) return std::exchange(held_, nullptr);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw std::runtime_error("no request came");
  }
  bool soon_left(int count) const {
    for (int i = 0; i < 1000 && left_ < count; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return left_ == count;
  }
  std::string raw(const std::string& bytes) const {
    HttpConnection connection(server_->port());
    connection.send(bytes);
    return all(connection);
  }
  static std::string all(HttpConnection& connection) {
    std::string text;
    while (connection.receive(text)) {
    }
    return text;
  }
  static std::string echo(const std::string& body, const std::string& more = {}) {
    return fmt::format("POST /echo HTTP/1.1\r\nHost: a\r\n{}Content-Length: {}\r\n\r\n{}", more, body.size(), body);
  }

  std::unique_ptr<HttpServer> server_;
  std::thread running_;
  std::mutex mutex_;
  std::shared_ptr<HttpExchange> held_;
  std::atomic<int> left_ = 0;
};

/// The statuses and bodies of some answers.
std::vector<std::string> answers(std::string text) {
  std::vector<std::string> found;
  while (text.starts_with("HTTP/1.1 ")) {
    const auto head = text.find("\r\n\r\n");
    const auto length = text.find("Content-Length: ");
    if (head == text.npos || length > head) break;
    const auto size = std::stoul(text.substr(length + 16));
    found.push_back(text.substr(9, 3) + " " + text.substr(head + 4, size));
    text.erase(0, head + 4 + size);
  }
  if (!text.empty()) found.push_back("rest: " + text);
  return found;
}

TEST_F(ServeHttp, RequestsInOnePacketAreAllAnswered) {
  start();
  const std::vector<std::string> expected{"200 POST /echo a", "200 POST /echo bb", "200 GET /models/x ",
                                          "200 POST /echo c"};
  const auto bytes =
      echo("a") + echo("bb") + "GET /models/x HTTP/1.1\r\nHost: a\r\n\r\n" + echo("c", "Connection: close\r\n");
  EXPECT_EQ(answers(raw(bytes)), expected);
  // Cut anywhere, the rest later: nothing of one is read as another.
  for (size_t cut = 1; cut < bytes.size(); cut += 7) {
    HttpConnection connection(server_->port());
    connection.send(std::string_view(bytes).substr(0, cut));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    connection.send(std::string_view(bytes).substr(cut));
    EXPECT_EQ(answers(all(connection)), expected) << cut;
  }
}

TEST_F(ServeHttp, AHalfClosedClientIsServed) {
  start();
  HttpConnection connection(server_->port());
  connection.send(echo("a") + "POST /held HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx" + echo("b"));
  connection.end_writing();
  const auto exchange = held();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(left_, 0);
  exchange->answer({.body = "late"});
  EXPECT_EQ(answers(all(connection)), (std::vector<std::string>{"200 POST /echo a", "200 late", "200 POST /echo b"}));
  // A stream as well.
  HttpConnection streaming(server_->port());
  streaming.send("POST /held HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
  const auto stream = held();
  stream->begin({.content_type = "text/plain"});
  stream->write("one ");
  streaming.end_writing();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stream->write("two");
  stream->end();
  EXPECT_EQ(reply_of(all(streaming)).body, "one two");
  EXPECT_EQ(left_, 0);
}

TEST_F(ServeHttp, AClientThatLeavesIsSeen) {
  start();
  for (const bool streams : {false, true}) {
    HttpConnection connection(server_->port());
    connection.send("POST /held HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
    const auto exchange = held();
    EXPECT_EQ(server_->busy(), 1u);
    if (streams) {
      std::string text;
      exchange->begin({});
      connection.receive(text);
    }
    connection.close();
    EXPECT_TRUE(soon_left(streams ? 2 : 1));
    exchange->write("nobody");
    exchange->answer({.body = "nobody"});
    EXPECT_EQ(server_->busy(), 0u);
  }
}

TEST_F(ServeHttp, KnownPathsSayTheirMethods) {
  start();
  const auto get = [&](const std::string& method, const std::string& path) {
    return reply_of(raw(method + " " + path + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  };
  for (const auto* method : {"GET", "PUT", "DELETE", "HEAD"}) EXPECT_EQ(get(method, "/echo").status, 405) << method;
  EXPECT_THAT(get("GET", "/echo").head, HasSubstr("Allow: POST, OPTIONS"));
  EXPECT_THAT(get("POST", "/models/x").head, AllOf(HasSubstr("405"), HasSubstr("Allow: GET, HEAD, OPTIONS")));
  EXPECT_EQ(get("OPTIONS", "/stream").status, 204);
  EXPECT_THAT(get("OPTIONS", "/stream").head,
              AllOf(HasSubstr("Allow: GET, HEAD, OPTIONS"), Not(HasSubstr("Content-Length"))));
  EXPECT_EQ(get("OPTIONS", "/nothing").status, 404);
  EXPECT_EQ(get("GET", "/models/x/y").status, 404);
  EXPECT_EQ(get("GET", "/models/").status, 404);
  EXPECT_EQ(get("GET", "/models/a%20b?q=1").body, "GET /models/a b ");
  EXPECT_EQ(get("GET", "/models/%zz").status, 400);
  EXPECT_EQ(get("GET", "http://a/models/x").body, "GET /models/x ");
  EXPECT_EQ(get("HEAD", "/models/x").status, 200);
  EXPECT_EQ(get("HEAD", "/models/x").body, "");
}

TEST_F(ServeHttp, OldClientsGetNoChunks) {
  start();
  const auto old = raw("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_THAT(old, Not(HasSubstr("chunked")));
  EXPECT_EQ(reply_of(old).body, "one two");
  const auto now = raw("GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(now, HasSubstr("Transfer-Encoding: chunked"));
  EXPECT_EQ(reply_of(now).body, "one two");
  EXPECT_EQ(answers(raw("GET /models/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /models/b HTTP/1.0\r\n\r\n")),
            (std::vector<std::string>{"200 GET /models/a ", "200 GET /models/b "}));
}

TEST_F(ServeHttp, WhatTwoCouldReadDifferentlyIsRefused) {
  start({.max_body_bytes = 100});
  const auto status = [&](const std::string& head) { return reply_of(raw(head + "\r\n\r\n")).status; };
  const std::string post = "POST /echo HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(status("GET /models/x HTTP/1.1"), 400);  // no Host
  EXPECT_EQ(status("GET /models/x HTTP/1.1\r\nHost: a\r\nHost: b"), 400);
  EXPECT_EQ(status("GET /models/x HTTP/2.0\r\nHost: a"), 505);
  EXPECT_EQ(status("GET /models/x"), 400);
  EXPECT_EQ(status(post + "Content-Length: 5\r\nTransfer-Encoding: chunked"), 400);
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\nContent-Length: 5"), 400);
  EXPECT_EQ(status(post + "Content-Length: 5\r\nContent-Length: 6"), 400);
  EXPECT_EQ(status(post + "Content-Length: -5"), 400);
  EXPECT_EQ(status(post + "Content-Length: 99999999999999999999999"), 400);
  EXPECT_EQ(status(post + "Transfer-Encoding: gzip, chunked"), 400);
  EXPECT_EQ(status(post + "Transfer-Encoding: identity"), 400);
  EXPECT_EQ(status(post + "Content-Length: 101"), 413);
  EXPECT_EQ(status(post + "Content-Encoding: gzip\r\nContent-Length: 1"), 415);
  EXPECT_EQ(status("GET /" + std::string(9000, 'x') + " HTTP/1.1\r\nHost: a"), 414);
  EXPECT_EQ(status("GET /" + std::string(90000, 'x') + " HTTP/1.1\r\nHost: a"), 414);
  EXPECT_EQ(status("GET /models/x HTTP/1.1\r\nHost: a\r\nX: " + std::string(90000, 'x')), 431);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "\r\nX: y";
  EXPECT_EQ(status("GET /models/x HTTP/1.1\r\nHost: a" + many), 431);
  EXPECT_EQ(status(post + "Transfer-Encoding: chunked\r\n\r\nzz"), 400);
  EXPECT_EQ(
      answers(raw(post + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n")),
      (std::vector<std::string>{"200 POST /echo abc"}));
  // What is refused before its body was read is no beginning of another request.
  EXPECT_EQ(answers(raw(post + "x-api-key: no\r\nContent-Length: 20\r\n\r\n" + echo("a"))).size(), 1u);
  const auto expects = raw(echo("abc", "Expect: 100-continue\r\nConnection: close\r\n"));
  EXPECT_THAT(expects, AllOf(HasSubstr("HTTP/1.1 200 OK"), HasSubstr("POST /echo abc")));
}

TEST_F(ServeHttp, ASlowRequestIsToldSo) {
  start({.read_timeout = std::chrono::milliseconds(200), .idle_timeout = std::chrono::milliseconds(100)});
  EXPECT_EQ(reply_of(raw("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")).status, 408);
  EXPECT_EQ(raw(""), "");  // silence is closed
}

TEST_F(ServeHttp, ConnectionsBeyondTheLimitAreAnswered) {
  start({.max_connections = 2});
  std::vector<std::unique_ptr<HttpConnection>> connections;
  for (int i = 0; i < 4; ++i) {
    connections.push_back(std::make_unique<HttpConnection>(server_->port()));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (int i = 0; i < 20; ++i) {
    const auto reply = reply_of(raw(echo("x")));
    ASSERT_EQ(reply.status, 503);
    EXPECT_EQ(reply.body, "503");
  }
  // The third and the fourth wait until the first and the second have gone.
  connections[2]->send(echo("third", "Connection: close\r\n"));
  connections[0]->close();
  EXPECT_EQ(answers(all(*connections[2])), (std::vector<std::string>{"200 POST /echo third"}));
}

}  // namespace
}  // namespace levin::testing::serve_http_test
