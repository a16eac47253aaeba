#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::serve {

/// "/a b" of "/a%20b?c=d"; nothing where it is not valid.
std::optional<std::string> path_of(std::string_view target);

/// "Thu, 01 Jan 1970 00:00:00 GMT", for now.
std::string http_date();

/// The methods of a path, "GET, HEAD, OPTIONS"; empty: there is no such path. `routes`: those of HttpServer.
std::string allowed_methods(const std::vector<std::pair<std::string, std::string>>& routes, std::string_view path);

}  // namespace levin::serve
