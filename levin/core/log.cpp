#include "levin/core/log.h"

#include <cstdio>
#include <mutex>
#include <set>
#include <string>

#include <unistd.h>

namespace levin {
namespace {

int log_rank = 0;
std::mutex once_mutex;

void print(std::string_view prefix, std::string_view line) {
  // One call per line: the lines of ranks that share a terminal must not mix.
  std::string text;
  text.reserve(prefix.size() + line.size() + 5);
  // A progress bar may stand on the line; it draws itself again below.
  static const bool terminal = ::isatty(::fileno(stderr)) == 1;
  if (terminal) text.append("\r\x1b[K");
  text.append(prefix).append(line).push_back('\n');
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

void set_log_rank(int rank) {
  log_rank = rank;
}

void log_info(std::string_view line) {
  if (log_rank == 0) print("levin: ", line);
}

void log_warning(std::string_view line) {
  if (log_rank == 0) print("levin: warning: ", line);
}

void warn_once(std::string_view line) {
  static std::set<std::string, std::less<>> seen;
  {
    std::lock_guard lock(once_mutex);
    if (!seen.emplace(line).second) return;
  }
  log_warning(line);
}

}  // namespace levin
