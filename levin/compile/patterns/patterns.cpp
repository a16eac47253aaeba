#include "levin/compile/patterns/patterns.h"

#include <array>

namespace levin::compile {

std::vector<std::string> apply_patterns(const PatternContext& context) {
  constexpr std::array kPatterns{fuse_attention, fuse_cross_entropy};
  std::vector<std::string> lines;
  for (const auto pattern : kPatterns)
    if (auto line = pattern(context); !line.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace levin::compile
