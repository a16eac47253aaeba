#include "levin/io/records/record_paths.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <glob.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

constexpr size_t kMostFiles = 1'000'000;

std::optional<int64_t> brace_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// What stands between two braces, written out.
std::vector<std::string> brace_words(std::string_view inside, const std::string& path) {
  std::vector<std::string> words;
  if (const auto dots = inside.find(".."); dots != std::string_view::npos) {
    const auto first = brace_number(inside.substr(0, dots)), last = brace_number(inside.substr(dots + 2));
    LEVIN_CHECK(first && last && *first <= *last, "[records] \"", path, "\": {", inside,
                "} is no range of numbers such as {000..146}");
    LEVIN_CHECK(static_cast<uint64_t>(*last - *first) < kMostFiles, "[records] \"", path, "\": {", inside,
                "} is more than ", kMostFiles, " files");
    const size_t width = inside[0] == '0' || inside[dots + 2] == '0' ? dots : 1;
    for (int64_t i = *first; i <= *last; ++i) words.push_back(fmt::format("{:0{}}", i, width));
    return words;
  }
  while (true) {
    const auto comma = std::min(inside.find(','), inside.size());
    words.emplace_back(inside.substr(0, comma));
    if (comma == inside.size()) return words;
    inside.remove_prefix(comma + 1);
  }
}

[[noreturn]] void fail_missing(const std::string& path, const std::string& asked) {
  const fs::path missing(path);
  const auto parent = missing.has_parent_path() ? missing.parent_path() : fs::path(".");
  std::error_code error;
  std::vector<std::string> names;
  for (auto entry = fs::directory_iterator(parent, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    auto name = entry->path().filename().string();
    if (!name.starts_with('.') && names.size() < 10'000) names.push_back(std::move(name));
  }
  if (!fs::is_directory(parent, error))
    throw Error(concat("[records] \"", path, "\" is not there: there is no folder \"", parent.string(), "\""));
  std::sort(names.begin(), names.end());
  const auto near = nearest_word(missing.filename().string(), names);
  throw Error(concat(
      "[records] \"", path, "\" is not there", path == asked ? "" : concat(" (asked for: \"", asked, "\")"),
      near.empty() ? std::string() : concat("; did you mean \"", (missing.parent_path() / near).string(), "\"?")));
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& path) {
  const auto open = path.find('{');
  if (open == std::string::npos) return {path};
  const auto close = path.find('}', open);
  LEVIN_CHECK(close != std::string::npos && path.find('{', open + 1) >= close, "[records] \"", path,
              "\": a brace is not closed, or has another inside");
  std::vector<std::string> paths;
  const auto rests = expand_braces(path.substr(close + 1));
  for (const auto& word : brace_words(std::string_view(path).substr(open + 1, close - open - 1), path))
    for (const auto& rest : rests) {
      LEVIN_CHECK(paths.size() < kMostFiles, "[records] \"", path, "\" is more than ", kMostFiles, " files");
      paths.push_back(path.substr(0, open) + word + rest);
    }
  return paths;
}

Paths expand_record_paths(const std::string& path) {
  LEVIN_CHECK(!path.empty(), "[records] the path is empty");
  std::error_code error;
  if (fs::exists(path, error)) return {path};
  Paths paths;
  for (const auto& one : expand_braces(path)) {
    if (one.find_first_of("*?[") == std::string::npos) {
      if (!fs::exists(one, error)) fail_missing(one, path);
      paths.emplace_back(one);
      continue;
    }
    glob_t found{};
    const int result = ::glob(one.c_str(), GLOB_NOSORT, nullptr, &found);
    std::vector<std::string> names(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
    ::globfree(&found);
    LEVIN_CHECK(!names.empty(), "[records] \"", one, "\": there is no such file");
    std::sort(names.begin(), names.end());  // by bytes, whatever the locale
    // What lies beside the shards, unless it is asked for: indexes and class names.
    for (const char* end : {".index", ".idx", ".labels.txt"})
      if (!one.ends_with(end)) std::erase_if(names, [&](const std::string& name) { return name.ends_with(end); });
    paths.insert(paths.end(), names.begin(), names.end());
  }
  LEVIN_CHECK(!paths.empty(), "[records] \"", path, "\": there is no such file");
  return paths;
}

}  // namespace levin::detail
