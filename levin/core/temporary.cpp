#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>

#include <fmt/format.h>
#include <unistd.h>

#include "levin/core/checksum.h"
#include "levin/core/files.h"

namespace levin {
namespace fs = std::filesystem;
namespace {

/// Names of 255 bytes are the limit of common file systems, and the marks need room.
constexpr size_t kLongestStem = 120;
constexpr std::string_view kOldMark = ".old";

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "host";
  std::string text(name);
  for (auto& c : text)
    if (c == '-' || c == '/') c = '_';
  return text.substr(0, 40);
}

bool is_dead(std::string_view process) {
  int id = 0;
  const auto [end, error] = std::from_chars(process.data(), process.data() + process.size(), id);
  if (error != std::errc() || id <= 0 || (end != process.data() + process.size() && *end != '-')) return false;
  return ::kill(id, 0) != 0 && errno == ESRCH;
}

std::string mark_of(const fs::path& path) {
  auto stem = path.filename().string();
  if (stem.size() > kLongestStem) stem = stem.substr(0, kLongestStem) + checksum_text(crc32c(stem));
  return fmt::format(".{}.tmp-{}-", stem, host_name());
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

/// What processes of this host that are no more have left beside `path`; `old`: the folders that were being replaced.
std::vector<fs::path> leftovers(const fs::path& path, bool old) {
  const auto mark = mark_of(path);
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator it(parent_of(path), error), end; !error && it != end; it.increment(error)) {
    const auto name = it->path().filename().string();
    if (name.starts_with(mark) && name.ends_with(kOldMark) == old &&
        is_dead(std::string_view(name).substr(mark.size())))
      found.push_back(it->path());
  }
  return found;
}

}  // namespace

fs::path detail::temporary_beside(const fs::path& path) {
  static std::atomic<int> counter = 0;
  std::error_code ignored;
  for (const auto& dead : leftovers(path, false)) fs::remove_all(dead, ignored);
  const auto name = fmt::format("{}{}-{}", mark_of(path), ::getpid(), counter++);
  return path.has_parent_path() ? path.parent_path() / name : fs::path(name);
}

void detail::restore_replaced(const fs::path& path) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error))) return;
  const auto old = leftovers(path, true);
  if (!old.empty()) fs::rename(old.front(), path, error);
}

}  // namespace levin
