#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "levin/core/files.h"
#include "levin/io/decompress.h"

namespace levin::profilers_test {

using Json = nlohmann::json;

/// A trace file, plain or compressed; throws where it is not JSON.
inline Json read_trace(const std::filesystem::path& path) {
  const FileReader file(path);
  std::string text;
  if (detail::compression_of(file) == detail::Compression::kNone)
    text = read_file(path);
  else
    detail::decompress_gzip(file, [&](std::span<const std::byte> block) {
      text.append(reinterpret_cast<const char*>(block.data()), block.size());
    });
  return Json::parse(text);
}

/// Spans whose name begins so, in the order of their beginnings.
inline std::vector<Json> spans(const Json& trace, const std::string& name, const std::string& category = "") {
  std::vector<Json> found;
  for (const auto& event : trace["traceEvents"])
    if (event.value("ph", "") == "X" && event.value("name", "").starts_with(name) &&
        (category.empty() || event.value("cat", "") == category))
      found.push_back(event);
  // Of those that begin together the file has the outermost first.
  std::stable_sort(found.begin(), found.end(), [](const Json& a, const Json& b) { return a["ts"] < b["ts"]; });
  return found;
}

inline bool is_inside(const Json& inner, const Json& outer) {
  const auto begin = [](const Json& e) { return e["ts"].get<double>(); };
  const auto end = [](const Json& e) { return e["ts"].get<double>() + e["dur"].get<double>(); };
  constexpr double kRounding = 0.002;
  return begin(inner) >= begin(outer) - kRounding && end(inner) <= end(outer) + kRounding;
}

}  // namespace levin::profilers_test
