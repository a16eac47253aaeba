#include "levin/program/own_prefix.h"

namespace levin::cli {

std::filesystem::path own_prefix() {
  std::error_code error;
  auto folder = std::filesystem::read_symlink("/proc/self/exe", error);
  while (folder.has_relative_path()) {
    folder = folder.parent_path();
    if (std::filesystem::exists(folder / LEVIN_PACKAGE, error)) return folder;
  }
  return {};
}

}  // namespace levin::cli
