#include "levin/loggers/logger.h"

#include <algorithm>
#include <charconv>

#include "levin/core/files.h"
#include "levin/loggers/append_file.h"
#include "levin/loggers/yaml.h"

namespace levin {

void Logger::set_totals(int64_t, int64_t) {}
void Logger::log_histogram(const std::string&, const at::Tensor&, std::optional<int64_t>) {}
void Logger::log_image(const std::string&, const at::Tensor&, std::optional<int64_t>) {}
void Logger::log_text(const std::string&, const std::string&, std::optional<int64_t>) {}

StateDict Logger::position() {
  save();
  return {};
}

void Logger::resume(const StateDict&) {}
bool Logger::has_log(const StateDict&) const {
  return true;
}
bool Logger::reopen(const std::filesystem::path&) {
  return false;
}

int64_t next_version(const std::filesystem::path& root, const std::string& name) {
  constexpr std::string_view kPrefix = "version_";
  int64_t next = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root / name, ignored)) {
    const auto folder = entry.path().filename().string();
    if (!folder.starts_with(kPrefix) || !entry.is_directory(ignored)) continue;
    int64_t number = -1;
    const auto* end = folder.data() + folder.size();
    const auto [at, error] = std::from_chars(folder.data() + kPrefix.size(), end, number);
    if (error == std::errc() && at == end) next = std::max(next, number + 1);
  }
  return next;
}

void detail::write_hparams(const std::filesystem::path& folder, const StateDict& values) {
  make_folder(folder);
  write_file(folder / "hparams.yaml", to_yaml(values));
}

}  // namespace levin
