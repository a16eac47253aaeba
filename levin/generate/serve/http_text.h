#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/generate/serve/http.h"

/// Texts of HTTP/1.1 without a connection: what a head says, what is refused in it, what an answer begins with.
namespace levin::serve {

/// The first line and the fields of a request.
struct HttpHead {
  std::string method, target;
  /// 11 of HTTP/1.1.
  int version = 11;
  std::vector<std::pair<std::string, std::string>> fields = {};

  /// The value of a field, whose name may be written in any case; empty where it is not there.
  std::string_view field(std::string_view name) const;
  size_t count(std::string_view name) const;
};

/// Fields of a head, at most.
inline constexpr size_t kMostFields = 64;

/// The request of a head, without its body.
HttpRequest request_of(const HttpHead& head);
/// The status with which HTTP itself refuses a head; nothing where it does not.
std::optional<int> refused_status(const HttpHead& head);

/// The beginning of every answer: it may be sent before the answer is known.
inline constexpr std::string_view kAnswerBegins = "HTTP/1.1 ";
/// The head of an answer up to the empty line, with `framing`, lines about its length. `connection`: what becomes of
/// the connection, or empty.
std::string answer_head(const HttpResponse& response, std::string_view framing, std::string_view connection);

/// "/a b" of "/a%20b?c=d"; nothing where it is not valid.
std::optional<std::string> path_of(std::string_view target);

/// "Thu, 01 Jan 1970 00:00:00 GMT", for now.
std::string http_date();

/// The methods of a path, "GET, HEAD, OPTIONS"; empty: there is no such path. `routes`: those of HttpServer.
std::string allowed_methods(const std::vector<std::pair<std::string, std::string>>& routes, std::string_view path);

}  // namespace levin::serve
