#include "levin/profilers/profiler.h"

#include <cctype>
#include <cstdio>
#include <string_view>

#include "levin/core/files.h"

namespace levin {
namespace {

// A name that any file system takes: runs of what one may refuse become one underscore.
std::string safe_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const char kept = std::string_view("\\/:*?\"<>|\n\r\t").find(c) == std::string_view::npos ? c : '_';
    if (kept != '_' || name.empty() || name.back() != '_') name += kept;
  }
  return name;
}

}  // namespace

void Profiler::setup(std::string stage, std::optional<int> rank, const std::filesystem::path& log_dir) {
  stage_ = std::move(stage);
  rank_ = rank;
  if (options_.dirpath.empty()) options_.dirpath = log_dir;
}

std::string Profiler::title() const {
  std::string text;
  for (const char c : stage_) text += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text.empty() ? text : text + " ";
}

std::filesystem::path Profiler::file() const {
  std::string name = stage_;
  name += (name.empty() ? "" : "-") + options_.filename;
  if (rank_) name += "-" + std::to_string(*rank_);
  return options_.dirpath / (safe_name(name) + ".txt");
}

void Profiler::describe() const {
  const auto text = summary();
  if (text.empty()) return;
  if (options_.filename.empty() || options_.dirpath.empty()) {
    if (rank_.value_or(0) != 0) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    return;
  }
  // Reports follow each other, as the stages of a run do.
  check_writable(options_.dirpath);
  const auto path = file();
  write_file(path, (std::filesystem::exists(path) ? read_file(path) : std::string()) + text);
}

void Span::stop() noexcept {
  try {
    profiler_->stop(action_);
  } catch (...) {  // stopped by hand inside the scope
  }
}

}  // namespace levin
