#include "levin/program/commands/report/report_serve.h"

#include <chrono>
#include <cstdio>
#include <mutex>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/generate/serve/http.h"
#include "levin/report/live.h"

namespace levin::cli {
namespace {

using serve::HttpRequest, serve::HttpResponse;

/// "[::1]:8080" and "localhost:8080" without the port.
std::string without_port(const std::string& host) {
  if (host.starts_with("[")) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "::1";
}

/// What the requests of all connections are answered from.
class Answers {
 public:
  Answers(const std::vector<std::filesystem::path>& paths, bool local_only) : local_only_(local_only), live_(paths) {}

  /// A page of another site must not read the report through a name that it gives to this address.
  std::optional<HttpResponse> refused(const HttpRequest& request) const {
    if (!local_only_ || request.host.empty() || is_loopback(without_port(request.host))) return std::nullopt;
    return text(403, "This report is for this machine alone.\n");
  }

  HttpResponse answer(const HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    refresh();
    const auto state = live_.state();
    if (request.path == "/state")
      return json(fmt::format(R"({{"version":{},"traces":{}}})", state.version, state.traces));
    if (request.path == "/runs.json") return json(live_.runs_json());
    if (request.path == "/report.json") return json(live_.report_json());
    return {.body = report::html_page(live_.report_json(), {.live = state}),
            .content_type = "text/html; charset=utf-8",
            .headers = headers()};
  }

  static HttpResponse text(int status, std::string body) {
    return {.status = status, .body = std::move(body), .content_type = "text/plain", .headers = headers()};
  }

 private:
  static std::vector<std::pair<std::string, std::string>> headers() {
    return {{"Cache-Control", "no-store"}, {"X-Content-Type-Options", "nosniff"}, {"X-Frame-Options", "DENY"}};
  }
  static HttpResponse json(std::string body) { return {.body = std::move(body), .headers = headers()}; }

  /// Several pages ask every two seconds; the files are looked at once.
  void refresh() {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < std::chrono::seconds(1)) return;
    live_.refresh();
    looked_ = now;
  }

  const bool local_only_;
  std::mutex mutex_;
  report::LiveReport live_;
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace

int serve_report(const std::vector<std::filesystem::path>& paths, const ReportServeOptions& options) {
  LEVIN_CHECK(options.port >= 0 && options.port <= 65535, "[levin report] port ", options.port,
              " is not from 0 to 65535");
  Answers answers(paths, is_loopback(options.host));
  serve::HttpServer server(
      {.host = options.host, .port = options.port, .max_connections = 32, .max_body_bytes = 1024},
      {{"GET", "/"}, {"GET", "/state"}, {"GET", "/runs.json"}, {"GET", "/report.json"}},
      {.admit = [&](const HttpRequest& request) { return answers.refused(request); },
       // In a worker: the traces may have to be read again.
       .serve =
           [&](const HttpRequest& request, const std::shared_ptr<serve::HttpExchange>& exchange) {
             server.work([&, request, exchange] {
               try {
                 exchange->answer(answers.answer(request));
               } catch (const std::exception& error) {
                 exchange->answer(Answers::text(500, fmt::format("{}\n", one_line(error))));
               }
             });
           },
       .refuse = [](const HttpRequest&, int status) { return Answers::text(status, fmt::format("{}\n", status)); }});
  if (!is_loopback(options.host)) log_warning("anyone who reaches this address may read the report");
  log_info("the report is read again while its files change; Ctrl-C ends it");
  const auto host = options.host.find(':') == std::string::npos ? options.host : "[" + options.host + "]";
  std::puts(fmt::format("http://{}:{}/", host, server.port()).c_str());
  std::fflush(stdout);
  server.run();
  return 0;
}

}  // namespace levin::cli
