#include "levin/program/commands/name_patterns.h"

#include <algorithm>

#include <fnmatch.h>

namespace levin::cli {

bool passes(const std::string& name, const std::vector<std::string>& patterns) {
  bool any = false;
  bool chosen = false;
  for (const auto& pattern : patterns) {
    const bool excludes = pattern.starts_with('!');
    const bool matches = ::fnmatch(pattern.c_str() + (excludes ? 1 : 0), name.c_str(), 0) == 0;
    if (excludes && matches) return false;
    any = any || !excludes;
    chosen = chosen || (!excludes && matches);
  }
  return chosen || !any;
}

bool name_module_prefix(const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [](const std::string& pattern) {
    return pattern.starts_with("module.") || pattern.starts_with("!module.");
  });
}

}  // namespace levin::cli
