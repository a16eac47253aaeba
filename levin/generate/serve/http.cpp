#include "levin/generate/serve/http.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <set>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <fmt/format.h>
#include <poll.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/generate/serve/http_text.h"

namespace levin::serve {
namespace wire {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using Failure = boost::system::error_code;

constexpr size_t kWorkers = 8;
constexpr size_t kReadBytes = 16384;
constexpr size_t kHeaderBytes = 65536;
/// Bytes of the requests behind the one that is served, at most; more are read when it is answered.
constexpr size_t kAhead = 65536;
/// A client that is still writing when it has been refused is heard out this long, or it would not read why.
constexpr std::chrono::milliseconds kLinger{3000};
/// For the last bytes when the server stops.
constexpr std::chrono::milliseconds kLastBytes{1000};
/// Connections beyond the limits that are being told so; further ones are closed.
constexpr size_t kTurnedAway = 1024;

}  // namespace

class Connection;

/// Posts to the connection, which forgets an exchange whose client has left.
class Exchange final : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  explicit Exchange(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

  void answer(HttpResponse response) override;
  void begin(HttpResponse head) override;
  void write(std::string part) override;
  void end() override;
  void when_left(std::function<void()> left) override;

 private:
  const std::shared_ptr<Connection> connection_;
};

/// The thread of connections: all that it touches is touched by it alone, but for what is atomic.
class Loop {
 public:
  Loop(const HttpOptions& asked, std::vector<std::pair<std::string, std::string>> paths, HttpHandlers with)
      : options(asked), routes(std::move(paths)), handlers(std::move(with)) {}

  void bind();
  void run();
  void stop();
  void after(std::chrono::milliseconds time, std::function<void()> function);
  void closed(const std::shared_ptr<Connection>& connection);

  const HttpOptions options;
  const std::vector<std::pair<std::string, std::string>> routes;
  const HttpHandlers handlers;
  asio::io_context io{1};
  asio::thread_pool workers{kWorkers};
  std::atomic<size_t> busy = 0;
  int port = -1;

 private:
  void accept();
  void take(tcp::socket socket);
  void serve(tcp::socket socket);
  void end_if_done();

  tcp::acceptor acceptor_{io};
  std::set<std::shared_ptr<Connection>> served_, turned_away_;
  std::deque<tcp::socket> waiting_;
  bool is_stopping_ = false;
};

/// A connection and all that was read from it. One read is under way at a time, and everything it brings is kept for
/// the request under way or the next one. All of it runs in the thread of connections.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Loop& server, tcp::socket socket) : server_(server), socket_(std::move(socket)), timer_(server.io) {}

  asio::io_context& io() { return server_.io; }
  void start() { await_request(); }
  /// There are too many connections.
  void turn_away() {
    is_kept_ = false;
    respond(server_.handlers.refuse({}, 503));
  }
  /// The server stops: what is under way is still sent.
  void stop() {
    is_kept_ = false;
    if (phase_ != Phase::kServing && out_.empty() && writing_.empty()) close();
  }
  void close();

  void answer(const Exchange& from, HttpResponse response) {
    if (exchange_.get() == &from && !has_head_) respond(std::move(response));
  }
  void begin(const Exchange& from, HttpResponse head);
  void write(const Exchange& from, std::string part);
  void end(const Exchange& from);
  void when_left(const Exchange& from, std::function<void()> left) {
    if (exchange_.get() == &from)
      left_ = std::move(left);
    else
      left();
  }

 private:
  /// kServing: until an answer is sent. kLingering: nothing more is sent; what still comes is dropped.
  enum class Phase { kIdle, kHeader, kBody, kServing, kLingering, kClosed };
  using Parser = http::request_parser<http::string_body>;

  void await_request();
  void read();
  void on_read(Failure failure, size_t count);
  void on_eof();
  void parse();
  bool on_header();
  void on_request();
  void malformed(Failure failure);
  void refuse(int status) {
    is_kept_ = false;
    respond(server_.handlers.refuse(request_, status));
  }
  void respond(HttpResponse response);
  void append_head(const HttpResponse& response, const std::string& framing);
  void probe();
  void flush();
  void send_some();
  void linger();
  void on_sent();
  void lose();
  void finish_exchange();
  void expire(std::chrono::milliseconds time);
  void on_timeout();

  Loop& server_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  uint64_t timer_count_ = 0;
  Phase phase_ = Phase::kIdle;
  std::array<char, kReadBytes> part_;
  /// What was read and is no part of a request yet.
  std::string input_;
  bool is_reading_ = false, has_eof_ = false;
  std::optional<Parser> parser_;
  bool has_line_ = false;  // the first line of the request is parsed
  HttpRequest request_;
  std::shared_ptr<Exchange> exchange_;
  std::function<void()> left_;
  /// State of the answer under way.
  bool has_head_ = false, is_chunked_ = false, is_done_ = false;
  /// Bytes of kAnswerBegins that were sent before the rest was known.
  size_t begun_ = 0;
  /// Whether the connection stays for another request.
  bool is_kept_ = true;
  std::string out_, writing_;
  size_t written_ = 0;
};

void Connection::expire(std::chrono::milliseconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this(), count = ++timer_count_](Failure failure) {
    if (!failure && count == self->timer_count_) self->on_timeout();
  });
}

void Connection::on_timeout() {
  switch (phase_) {
    case Phase::kHeader:
    case Phase::kBody:
      return refuse(408);
    case Phase::kServing:
      return lose();
    case Phase::kIdle:
    case Phase::kLingering:
      return close();
    case Phase::kClosed:
      return;
  }
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  finish_exchange();
  phase_ = Phase::kClosed;
  ++timer_count_;
  timer_.cancel();
  Failure ignored;
  socket_.close(ignored);
  server_.closed(shared_from_this());
}

/// The client has left, or takes nothing.
void Connection::lose() {
  auto left = std::exchange(left_, nullptr);
  close();
  if (left) left();
}

void Connection::finish_exchange() {
  if (!exchange_) return;
  exchange_.reset();
  left_ = nullptr;
  --server_.busy;
}

void Connection::await_request() {
  phase_ = Phase::kIdle;
  parser_.reset();
  request_ = {};
  has_head_ = is_chunked_ = is_done_ = has_line_ = false;
  begun_ = 0;
  expire(server_.options.idle_timeout);
  parse();
}

void Connection::read() {
  if (is_reading_ || has_eof_ || phase_ == Phase::kClosed) return;
  is_reading_ = true;
  socket_.async_read_some(asio::buffer(part_), [self = shared_from_this()](Failure failure, size_t count) {
    self->is_reading_ = false;
    self->on_read(failure, count);
  });
}

void Connection::on_read(Failure failure, size_t count) {
  if (phase_ == Phase::kClosed) return;
  if (failure == asio::error::eof) {
    has_eof_ = true;
    return on_eof();
  }
  if (failure) return lose();
  if (phase_ == Phase::kLingering) return read();
  input_.append(part_.data(), count);
  if (phase_ != Phase::kServing) return parse();
  if (input_.size() < kAhead) read();
}

void Connection::on_eof() {
  switch (phase_) {
    case Phase::kIdle:
    case Phase::kHeader:
    case Phase::kBody:
    case Phase::kLingering:
      return close();
    case Phase::kServing:
      return probe();
    case Phase::kClosed:
      return;
  }
}

/// The client has closed the half of the connection that it writes to, or all of it: which, the next byte that is
/// sent tells. A byte that the answer has in any case is sent now; the system of a client that has gone says so at
/// once.
void Connection::probe() {
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](Failure failure) {
    if (failure || self->phase_ == Phase::kClosed) return;
    pollfd at{.fd = self->socket_.native_handle(), .events = 0, .revents = 0};
    if (poll(&at, 1, 0) > 0 && at.revents & (POLLERR | POLLHUP)) self->lose();
  });
  if (!out_.empty() || !writing_.empty() || is_done_) return;
  if (!has_head_) {
    out_ = kAnswerBegins;
    begun_ = out_.size();
  } else if (is_chunked_) {
    out_ = "0";  // the size of the next chunk has a leading zero
  }
  flush();
}

void Connection::parse() {
  for (;;) {
    if (phase_ == Phase::kIdle) {
      // Empty lines before a request are skipped (RFC 9112, 2.2).
      input_.erase(0, std::min(input_.find_first_not_of("\r\n"), input_.size()));
      if (input_.empty() && (has_eof_ || !is_kept_)) return close();
      if (input_.empty()) return read();
      phase_ = Phase::kHeader;
      parser_.emplace();
      parser_->header_limit(kHeaderBytes);
      parser_->body_limit(server_.options.max_body_bytes);
      parser_->eager(false);
      expire(server_.options.read_timeout);
    }
    if (!input_.empty()) {
      Failure failure;
      const auto used = parser_->put(asio::buffer(input_), failure);
      input_.erase(0, used);
      has_line_ = has_line_ || used > 0;
      if (failure && failure != http::error::need_more) return malformed(failure);
    }
    if (phase_ == Phase::kHeader && parser_->is_header_done()) {
      if (!on_header()) return;
      phase_ = Phase::kBody;
      parser_->eager(true);
      if (!parser_->is_done() && !input_.empty()) continue;
    }
    if (phase_ == Phase::kBody && parser_->is_done()) return on_request();
    if (has_eof_) return close();
    return read();
  }
}

void Connection::malformed(Failure failure) {
  if (failure == http::error::body_limit) return refuse(413);
  if (failure == http::error::bad_version) return refuse(505);
  if (failure == http::error::header_limit) return refuse(has_line_ ? 431 : 414);
  refuse(400);
}

/// Whether the body is to be read; else the request is answered.
bool Connection::on_header() {
  const auto& header = parser_->get().base();
  HttpHead head{.method = std::string(header.method_string()),
                .target = std::string(header.target()),
                .version = static_cast<int>(header.version())};
  for (const auto& field : header)
    if (head.fields.size() <= kMostFields) head.fields.emplace_back(field.name_string(), field.value());
  request_ = request_of(head);
  is_kept_ = is_kept_ && parser_->keep_alive();
  const bool has_body = !parser_->is_done();
  if (const auto status = refused_status(head)) return refuse(*status), false;
  const auto early = [&](HttpResponse response) {
    if (has_body) is_kept_ = false;
    respond(std::move(response));
    return false;
  };
  if (auto refused = server_.handlers.admit(request_)) return early(std::move(*refused));
  const auto allowed = allowed_methods(server_.routes, request_.path);
  if (allowed.empty()) return early(server_.handlers.refuse(request_, 404));
  if (request_.method == "OPTIONS") return early({.status = 204, .headers = {{"Allow", allowed}}});
  const auto methods = ", " + allowed + ",";
  if (methods.find(", " + request_.method + ",") == methods.npos) {
    auto refused = server_.handlers.refuse(request_, 405);
    refused.headers.emplace_back("Allow", allowed);
    return early(std::move(refused));
  }
  if (has_body && head.count("Expect") > 0 && head.version == 11) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  return true;
}

void Connection::on_request() {
  phase_ = Phase::kServing;
  ++timer_count_;
  timer_.cancel();
  request_.body = std::move(parser_->get().body());
  const auto exchange = exchange_ = std::make_shared<Exchange>(shared_from_this());
  ++server_.busy;
  try {
    server_.handlers.serve(request_, exchange);
  } catch (const std::exception& error) {
    log_warning(fmt::format("{} has failed: {}", request_.path, one_line(error)));
    answer(*exchange, server_.handlers.refuse(request_, 500));
  }
  // Also to see a client leave.
  if (phase_ == Phase::kServing) has_eof_ ? probe() : read();
}

void Connection::append_head(const HttpResponse& response, const std::string& framing) {
  const bool is_old = parser_ && parser_->get().version() == 10;
  const auto head = answer_head(response, framing, !is_kept_ ? "close" : is_old ? "keep-alive" : "");
  out_ += std::string_view(head).substr(begun_);
  has_head_ = true;
}

void Connection::respond(HttpResponse response) {
  phase_ = Phase::kServing;
  if (has_eof_ && input_.empty()) is_kept_ = false;
  append_head(response, response.status == 204 ? "" : fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (request_.method != "HEAD") out_ += response.body;
  is_done_ = true;
  flush();
}

void Connection::begin(const Exchange& from, HttpResponse head) {
  if (exchange_.get() != &from || has_head_) return;
  // A client of HTTP/1.0 knows no chunks: the end of the connection is the end of the body (RFC 9112, 6.1).
  is_chunked_ = parser_->get().version() == 11;
  if (!is_chunked_ || (has_eof_ && input_.empty())) is_kept_ = false;
  append_head(head, is_chunked_ ? "Transfer-Encoding: chunked\r\n" : "");
  flush();
}

void Connection::write(const Exchange& from, std::string part) {
  if (exchange_.get() != &from || !has_head_ || is_done_ || part.empty()) return;
  if (is_chunked_)
    out_ += fmt::format("{:x}\r\n{}\r\n", part.size(), part);
  else
    out_ += part;
  flush();
}

void Connection::end(const Exchange& from) {
  if (exchange_.get() != &from || !has_head_ || is_done_) return;
  if (is_chunked_) out_ += "0\r\n\r\n";
  is_done_ = true;
  flush();
}

void Connection::flush() {
  if (phase_ == Phase::kClosed || (!writing_.empty() && written_ < writing_.size())) return;
  if (out_.empty()) {
    if (phase_ == Phase::kServing && is_done_) on_sent();
    return;
  }
  writing_ = std::exchange(out_, {});
  written_ = 0;
  send_some();
}

/// The time limit is that of a part, from when the one before it was taken.
void Connection::send_some() {
  expire(server_.options.write_timeout);
  const auto left = asio::buffer(writing_.data() + written_, writing_.size() - written_);
  socket_.async_write_some(left, [self = shared_from_this()](Failure failure, size_t count) {
    if (self->phase_ == Phase::kClosed) return;
    if (failure) return self->lose();
    self->written_ += count;
    if (self->written_ < self->writing_.size()) return self->send_some();
    self->writing_.clear();
    ++self->timer_count_;
    self->timer_.cancel();
    // A 100 amid a request: its time is still limited.
    if (self->phase_ == Phase::kBody) self->expire(self->server_.options.read_timeout);
    self->flush();
  });
}

/// All of an answer is sent.
void Connection::on_sent() {
  finish_exchange();
  is_kept_ ? await_request() : linger();
}

/// Closes the half that we write to, and waits for the client to close its own: what it has sent meanwhile would make
/// the system drop the answer.
void Connection::linger() {
  if (has_eof_) return close();
  phase_ = Phase::kLingering;
  Failure failure;
  socket_.shutdown(tcp::socket::shutdown_send, failure);
  if (failure) return close();
  expire(kLinger);
  read();
}

void Exchange::answer(HttpResponse response) {
  asio::dispatch(connection_->io(), [self = shared_from_this(), response = std::move(response)]() mutable {
    self->connection_->answer(*self, std::move(response));
  });
}

void Exchange::begin(HttpResponse head) {
  asio::dispatch(connection_->io(), [self = shared_from_this(), head = std::move(head)]() mutable {
    self->connection_->begin(*self, std::move(head));
  });
}

void Exchange::write(std::string part) {
  asio::dispatch(connection_->io(), [self = shared_from_this(), part = std::move(part)]() mutable {
    self->connection_->write(*self, std::move(part));
  });
}

void Exchange::end() {
  asio::dispatch(connection_->io(), [self = shared_from_this()] { self->connection_->end(*self); });
}

void Exchange::when_left(std::function<void()> left) {
  asio::dispatch(connection_->io(), [self = shared_from_this(), left = std::move(left)]() mutable {
    self->connection_->when_left(*self, std::move(left));
  });
}

void Loop::bind() {
  const auto where = [&] { return fmt::format("[levin serve] cannot listen on {}:{}: ", options.host, options.port); };
  Failure failure;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, failure);
  LEVIN_CHECK(!failure && !found.empty(), where(), "not an address of this machine");
  const auto address = found.begin()->endpoint();
  acceptor_.open(address.protocol(), failure);
  // Without it a port is taken for a while after a server has ended; two servers still do not share one.
  if (!failure) acceptor_.set_option(tcp::acceptor::reuse_address(true), failure);
  if (!failure) acceptor_.bind(address, failure);
  if (!failure) acceptor_.listen(asio::socket_base::max_listen_connections, failure);
  LEVIN_CHECK(!failure, where(), failure.message());
  port = acceptor_.local_endpoint().port();
  accept();
}

void Loop::accept() {
  acceptor_.async_accept([this](Failure failure, tcp::socket socket) {
    if (is_stopping_) return;
    if (!failure) {
      take(std::move(socket));
      return accept();
    }
    // No descriptors are left: some will be.
    after(std::chrono::milliseconds(100), [this] {
      if (!is_stopping_) accept();
    });
  });
}

void Loop::take(tcp::socket socket) {
  Failure ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  if (served_.size() < options.max_connections) return serve(std::move(socket));
  if (waiting_.size() < options.max_connections) {
    waiting_.push_back(std::move(socket));
    return;
  }
  if (turned_away_.size() >= kTurnedAway) return;
  const auto connection = std::make_shared<Connection>(*this, std::move(socket));
  turned_away_.insert(connection);
  connection->turn_away();
}

void Loop::serve(tcp::socket socket) {
  const auto connection = std::make_shared<Connection>(*this, std::move(socket));
  served_.insert(connection);
  connection->start();
}

void Loop::closed(const std::shared_ptr<Connection>& connection) {
  turned_away_.erase(connection);
  const bool was_served = served_.erase(connection) > 0;
  if (is_stopping_) return end_if_done();
  if (!was_served || waiting_.empty()) return;
  auto next = std::move(waiting_.front());
  waiting_.pop_front();
  serve(std::move(next));
}

void Loop::after(std::chrono::milliseconds time, std::function<void()> function) {
  const auto timer = std::make_shared<asio::steady_timer>(io, time);
  timer->async_wait([timer, function = std::move(function)](Failure) { function(); });
}

void Loop::stop() {
  if (std::exchange(is_stopping_, true)) return;
  Failure ignored;
  acceptor_.close(ignored);
  waiting_.clear();
  // Copies: who closes takes itself out.
  for (const auto& connection : std::set(served_)) connection->stop();
  for (const auto& connection : std::set(turned_away_)) connection->stop();
  after(kLastBytes, [this] { io.stop(); });
  end_if_done();
}

/// Behind a stop nothing is left to wait for but timers.
void Loop::end_if_done() {
  if (is_stopping_ && served_.empty() && turned_away_.empty()) io.stop();
}

void Loop::run() {
  // What nobody has caught must not end the server.
  for (bool has_ended = false; !has_ended;) {
    try {
      io.run();
      has_ended = true;
    } catch (const std::exception& error) {
      log_warning(fmt::format("a connection has failed: {}", one_line(error)));
    }
  }
  for (const auto& connection : std::set(served_)) connection->close();
  for (const auto& connection : std::set(turned_away_)) connection->close();
  workers.join();
}

}  // namespace wire

struct HttpServer::Impl {
  wire::Loop loop;
};

HttpServer::HttpServer(const HttpOptions& options, std::vector<std::pair<std::string, std::string>> routes,
                       HttpHandlers handlers)
    : impl_(new Impl{.loop = {options, std::move(routes), std::move(handlers)}}) {
  impl_->loop.bind();
}

HttpServer::~HttpServer() = default;

int HttpServer::port() const {
  return impl_->loop.port;
}

void HttpServer::run() {
  impl_->loop.run();
}

void HttpServer::stop() {
  post([loop = &impl_->loop] { loop->stop(); });
}

void HttpServer::post(std::function<void()> function) {
  wire::asio::post(impl_->loop.io, std::move(function));
}

void HttpServer::post_after(std::chrono::milliseconds time, std::function<void()> function) {
  post([loop = &impl_->loop, time, function = std::move(function)]() mutable {
    loop->after(time, std::move(function));
  });
}

void HttpServer::work(std::function<void()> function) {
  wire::asio::post(impl_->loop.workers, [function = std::move(function)] {
    try {
      function();
    } catch (const std::exception& error) {
      log_warning(fmt::format("a request has failed: {}", one_line(error)));
    }
  });
}

size_t HttpServer::busy() const {
  return impl_->loop.busy;
}

}  // namespace levin::serve
