#include "levin/generate/serve/http.h"

#include <cerrno>
#include <cstring>

#include <sys/socket.h>

#include "levin/core/error.h"
#include "levin/core/main.h"

// A namespace of our own: a program that links Levin may have another version of the library. Its own settings: a
// client that has left is no signal, and 64 headers are enough.
#define httplib levin_httplib
#define CPPHTTPLIB_SEND_FLAGS MSG_NOSIGNAL
#define CPPHTTPLIB_LISTEN_BACKLOG 511
#define CPPHTTPLIB_HEADER_MAX_COUNT 64
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wextra"
#include "third_party/httplib/httplib.h"
#pragma GCC diagnostic pop

namespace levin::serve {
namespace {

/// Of the connection that this thread serves.
thread_local int current_socket = -1;
/// Its last answer was an error, which says `Connection: close`; the library leaves some of these open.
thread_local bool answered_error = false;

HttpRequest request_of(const levin_httplib::Request& request) {
  return {.method = request.method,
          .path = request.path,
          .authorization = request.get_header_value("Authorization"),
          .host = request.get_header_value("Host"),
          .origin = request.get_header_value("Origin"),
          .body = request.body,
          .socket = current_socket};
}

void send(HttpResponse from, levin_httplib::Response& to) {
  to.status = from.status;
  answered_error = from.status >= 400;
  for (const auto& [name, value] : from.headers) to.set_header(name, value);
  if (!from.stream) {
    to.set_content(from.body, from.content_type);
    return;
  }
  const auto next = [stream = std::move(from.stream)](size_t, levin_httplib::DataSink& sink) {
    try {
      std::string more;
      const bool has_more = stream(more);
      if (!more.empty() && !sink.write(more.data(), more.size())) return false;
      if (!has_more) sink.done();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  };
  to.set_chunked_content_provider(from.content_type, next, [at_end = std::move(from.at_end)](bool) {
    if (at_end) at_end();
  });
}

/// The library's server with a limit on the time of a whole request: its own is on each read, and a client could send a
/// byte now and then for ever.
class LimitedServer : public levin_httplib::Server {
 public:
  explicit LimitedServer(std::chrono::milliseconds limit) : limit_(limit) {}

 private:
  bool process_and_close_socket(int socket) override {
    namespace detail = levin_httplib::detail;
    std::string remote, local;
    int remote_port = 0, local_port = 0;
    detail::get_remote_ip_and_port(socket, remote, remote_port);
    detail::get_local_ip_and_port(socket, local, local_port);
    current_socket = socket;
    const bool served = detail::process_server_socket_core(
        svr_sock_, socket, keep_alive_max_count_, keep_alive_timeout_sec_, [&](bool close, bool& closed) {
          detail::SocketStream stream(socket, read_timeout_sec_, read_timeout_usec_, write_timeout_sec_,
                                      write_timeout_usec_, limit_.count(), std::chrono::steady_clock::now());
          stream.set_readable_hint();
          answered_error = false;
          const bool done = process_request(stream, remote, remote_port, local, local_port, close, closed, nullptr);
          closed = closed || answered_error;
          return done;
        });
    current_socket = -1;
    detail::drain_and_close_socket(socket);
    return served;
  }

  std::chrono::milliseconds limit_;
};

}  // namespace

struct HttpServer::Impl {
  Impl(const HttpOptions& options, HttpHandlers with) : server(options.read_timeout), handlers(std::move(with)) {}

  void configure(const HttpOptions& options) {
    server.new_task_queue = [most = options.max_connections]() -> levin_httplib::TaskQueue* {
      return new levin_httplib::ThreadPool(std::min<size_t>(8, most), most, most);
    };
    server.set_payload_max_length(options.max_body_bytes);
    server.set_read_timeout(options.read_timeout);
    server.set_write_timeout(options.write_timeout);
    server.set_keep_alive_timeout(options.idle_timeout.count());
    server.set_keep_alive_max_count(10'000);
    server.set_tcp_nodelay(true);
    // Its default lets two servers share a port.
    server.set_socket_options([](int socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
  }

  void bind(const HttpOptions& options) {
    errno = 0;
    if (options.port == 0)
      port = server.bind_to_any_port(options.host);
    else
      port = server.bind_to_port(options.host, options.port) ? options.port : -1;
    const int why = errno;
    LEVIN_CHECK(port > 0, "[levin serve] cannot listen on ", options.host, ":", options.port, ": ",
                why ? std::strerror(why) : "not an address of this machine");
  }

  void route(const std::vector<std::pair<std::string, std::string>>& routes) {
    using levin_httplib::Request, levin_httplib::Response;
    using Handled = levin_httplib::Server::HandlerResponse;
    server.set_pre_routing_handler([this](const Request& request, Response& response) {
      auto refused = handlers.admit(request_of(request));
      if (!refused) return Handled::Unhandled;
      send(std::move(*refused), response);
      return Handled::Handled;
    });
    const auto serve = [this](const Request& request, Response& response) {
      send(handlers.serve(request_of(request)), response);
    };
    for (const auto& [method, path] : routes) {
      if (method == "POST")
        server.Post(path, serve);
      else
        server.Get(path, serve);
    }
    server.set_error_handler([this](const Request& request, Response& response) {
      if (!response.body.empty()) return Handled::Unhandled;
      send(handlers.refuse(request_of(request), response.status), response);
      return Handled::Handled;
    });
    server.set_exception_handler([this](const Request& request, Response& response, const std::exception_ptr&) {
      send(handlers.refuse(request_of(request), 500), response);
    });
  }

  LimitedServer server;
  HttpHandlers handlers;
  int port = -1;
};

HttpServer::HttpServer(const HttpOptions& options, const std::vector<std::pair<std::string, std::string>>& routes,
                       HttpHandlers handlers)
    : impl_(std::make_unique<Impl>(options, std::move(handlers))) {
  impl_->configure(options);
  impl_->route(routes);
  impl_->bind(options);
}

HttpServer::~HttpServer() {
  stop();
}

int HttpServer::port() const {
  return impl_->port;
}

void HttpServer::run() {
  impl_->server.listen_after_bind();
}

void HttpServer::stop() {
  impl_->server.stop();
}

}  // namespace levin::serve
