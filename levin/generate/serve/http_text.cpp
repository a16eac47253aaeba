#include "levin/generate/serve/http_text.h"

#include <algorithm>
#include <array>
#include <ctime>

#include <boost/beast/http/status.hpp>
#include <fmt/format.h>

namespace levin::serve {
namespace {

constexpr size_t kTargetBytes = 8192;

/// Equal but for the case of letters (ASCII).
bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

/// The path of a target, whose absolute form, as to a proxy, names a host (RFC 9112, 3.2.2).
struct TargetParts {
  std::string host, path;
};
TargetParts parts_of(const std::string& target) {
  const auto scheme = target.find("://");
  if (scheme == target.npos || target[0] == '/') return {.path = target};
  const auto slash = target.find('/', scheme + 3);
  return {.host = target.substr(scheme + 3, slash == target.npos ? slash : slash - scheme - 3),
          .path = slash == target.npos ? "/" : target.substr(slash)};
}

}  // namespace

std::string_view HttpHead::field(std::string_view name) const {
  const auto at = std::ranges::find_if(fields, [&](const auto& each) { return same_word(each.first, name); });
  return at == fields.end() ? std::string_view() : at->second;
}

size_t HttpHead::count(std::string_view name) const {
  return static_cast<size_t>(
      std::ranges::count_if(fields, [&](const auto& each) { return same_word(each.first, name); }));
}

HttpRequest request_of(const HttpHead& head) {
  const auto text = [&](std::string_view name) { return std::string(head.field(name)); };
  const auto target = parts_of(head.target);
  return {.method = head.method,
          .path = path_of(target.path).value_or(target.path),
          .authorization = text("Authorization"),
          .api_key = text("X-API-Key"),
          .host = target.host.empty() ? text("Host") : target.host,
          .origin = text("Origin"),
          .body = {}};
}

std::optional<int> refused_status(const HttpHead& head) {
  if (head.version != 10 && head.version != 11) return 505;
  if (head.target.size() > kTargetBytes) return 414;
  if (head.fields.size() > kMostFields) return 431;
  // Without Host a request could be for anybody (RFC 9112, 3.2).
  const auto hosts = head.count("Host");
  if (hosts > 1 || (hosts == 0 && head.version == 11)) return 400;
  const auto encodings = head.count("Transfer-Encoding");
  if (encodings > 1 || (encodings == 1 && !same_word(head.field("Transfer-Encoding"), "chunked"))) return 400;
  if (encodings > 0 && head.version == 10) return 400;
  const auto content = head.field("Content-Encoding");
  if (!content.empty() && !same_word(content, "identity")) return 415;
  const auto expected = head.field("Expect");
  if (!expected.empty() && !same_word(expected, "100-continue")) return 417;
  if (!path_of(parts_of(head.target).path)) return 400;
  return {};
}

std::string answer_head(const HttpResponse& response, std::string_view framing, std::string_view connection) {
  const auto status = static_cast<boost::beast::http::status>(response.status);
  auto head = fmt::format("{}{} {}\r\nDate: {}\r\n", kAnswerBegins, response.status,
                          std::string(boost::beast::http::obsolete_reason(status)), http_date());
  if (response.status != 204) head += fmt::format("Content-Type: {}\r\n", response.content_type);
  head += framing;
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (!connection.empty()) head += fmt::format("Connection: {}\r\n", connection);
  return head + "\r\n";
}

std::optional<std::string> path_of(std::string_view target) {
  target = target.substr(0, target.find_first_of("?#"));
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path += target[i];
      continue;
    }
    const int high = i + 2 < target.size() ? digit(target[i + 1]) : -1, low = high < 0 ? -1 : digit(target[i + 2]);
    if (low < 0) return {};
    path += static_cast<char>(16 * high + low);
    i += 2;
  }
  return path;
}

std::string http_date() {
  const auto now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 40> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

std::string allowed_methods(const std::vector<std::pair<std::string, std::string>>& routes, std::string_view path) {
  std::string methods;
  for (const auto& [method, route] : routes) {
    const auto stem = std::string_view(route).substr(0, route.size() - 1);
    const bool is_any = route.ends_with("/*") && path.starts_with(stem) && path.size() > stem.size() &&
                        path.find('/', stem.size()) == path.npos;
    if (path != route && !is_any) continue;
    methods += method == "GET" ? "GET, HEAD, " : method + ", ";
  }
  return methods.empty() ? methods : methods + "OPTIONS";
}

}  // namespace levin::serve
