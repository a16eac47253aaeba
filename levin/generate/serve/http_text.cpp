#include "levin/generate/serve/http_text.h"

#include <array>
#include <ctime>

namespace levin::serve {

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
