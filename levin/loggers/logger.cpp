#include "levin/loggers/logger.h"

#include <algorithm>
#include <charconv>

#include "levin/core/error.h"

namespace levin::detail {

std::filesystem::path version_folder(const std::filesystem::path& root, const std::string& name,
                                     std::optional<int64_t> version) {
  LEVIN_CHECK(name.find("..") == std::string::npos, "[logger] name \"", name, "\" must not leave its folder");
  const auto base = root / name;
  if (version) return base / ("version_" + std::to_string(*version));
  int64_t next = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(base, ignored)) {
    const auto folder = entry.path().filename().string();
    if (!folder.starts_with("version_")) continue;
    int64_t number = -1;
    std::from_chars(folder.data() + 8, folder.data() + folder.size(), number);
    next = std::max(next, number + 1);
  }
  return base / ("version_" + std::to_string(next));
}

double metric_value(const std::string& name, const std::variant<double, at::Tensor>& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  const auto& tensor = std::get<at::Tensor>(value);
  LEVIN_CHECK(tensor.defined() && tensor.numel() == 1, "[log] metric \"", name, "\" must be one number");
  return tensor.item<double>();
}

}  // namespace levin::detail
