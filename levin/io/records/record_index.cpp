#include "levin/io/records/record_index.h"

#include <chrono>

#include <fmt/format.h>

#include "levin/core/checksum.h"
#include "levin/core/error.h"
#include "levin/core/files.h"

namespace levin::detail {
namespace fs = std::filesystem;
namespace {

fs::path index_path(fs::path file) {
  file += ".index";
  return file;
}

/// What the first line must be: it names the file that the index is of.
std::string index_head(const fs::path& file, std::string_view kind, std::string_view content) {
  const auto time = fs::last_write_time(file).time_since_epoch();
  return fmt::format("levin index 1 {} {} {} {}\n", kind, fs::file_size(file),
                     std::chrono::duration_cast<std::chrono::nanoseconds>(time).count(),
                     checksum_text(crc32c(content)));
}

}  // namespace

std::optional<std::string> load_record_index(const fs::path& file, std::string_view kind) {
  std::error_code error;
  const auto path = index_path(file);
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  try {
    auto text = read_file(path);
    const auto line = text.find('\n');
    if (line == std::string::npos || line > 200) return std::nullopt;
    const std::string_view content = std::string_view(text).substr(line + 1);
    if (text.substr(0, line + 1) != index_head(file, kind, content)) return std::nullopt;
    text.erase(0, line + 1);
    return text;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void save_record_index(const fs::path& file, std::string_view kind, std::string_view content) {
  try {
    AtomicFile out(index_path(file));
    out.write(index_head(file, kind, content));
    out.write(content);
    out.commit();
  } catch (const std::exception&) {
    // Data often lie where nothing may be written.
  }
}

}  // namespace levin::detail
