#include "levin/checkpoint/together.h"

#include <algorithm>

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/main.h"

namespace levin::detail {

std::vector<std::string> gather_together(Collective& group, const std::function<std::string()>& step) {
  constexpr char kDone = '+';
  constexpr char kFailed = '-';
  std::string report;
  try {
    report = kDone + step();
  } catch (const std::exception& error) {
    report = kFailed + one_line(error);
  }
  auto reports = gather_strings(group, report);
  const auto failed = [](const std::string& text) { return text[0] == kFailed; };
  if (const auto first = std::find_if(reports.begin(), reports.end(), failed); first != reports.end()) {
    const bool everyone = std::count(reports.begin(), reports.end(), *first) == group.size();
    throw Error(everyone ? first->substr(1) : fmt::format("{} (rank {})", first->substr(1), first - reports.begin()));
  }
  for (auto& text : reports) text.erase(0, 1);
  return reports;
}

void together(Collective& group, const std::function<void()>& step) {
  gather_together(group, [&] {
    step();
    return std::string();
  });
}

}  // namespace levin::detail
