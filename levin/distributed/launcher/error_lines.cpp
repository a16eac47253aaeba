#include "levin/distributed/launcher/error_lines.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace levin::detail {

std::string rank_list(std::span<const int> ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0, end = 0; i < ranks.size(); i = end) {
    for (end = i + 1; end < ranks.size() && ranks[end] == ranks[end - 1] + 1;) ++end;
    if (end - i == 2) end = i + 1;  // "0, 1"
    runs.push_back(end - i == 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
  }
  if (runs.empty()) return {};
  const auto last = runs.back();
  runs.pop_back();
  return fmt::format("rank{} {}{}{}", ranks.size() > 1 ? "s" : "", fmt::join(runs, ", "), runs.empty() ? "" : " and ",
                     last);
}

void show_errors(std::span<const HeldError> held, Console& console, std::map<std::string, size_t>& shown,
                 bool skip_shown) {
  struct Group {
    std::string line;
    std::vector<HeldError> members;
  };
  std::vector<HeldError> by_time(held.begin(), held.end());
  std::ranges::stable_sort(by_time, {}, [](const HeldError& one) { return one.relay.get().held_since(); });
  std::vector<Group> groups;
  for (const auto& one : by_time) {
    const auto line = one.relay.get().held_error();
    const auto same = std::ranges::find(groups, line, &Group::line);
    if (same == groups.end() || line.empty())
      groups.push_back({line, {one}});
    else
      same->members.push_back(one);
  }
  for (auto& [line, members] : groups) {
    bool is_shown = skip_shown && shown.contains(line);
    if (!is_shown && members.size() > 1) {
      std::ranges::sort(members, {}, &HeldError::rank);
      std::vector<int> ranks;
      for (const auto& one : members) ranks.push_back(one.rank);
      console.line(Stream::kErr, fmt::format("[{}] {}", rank_list(ranks), line));
      is_shown = true;
    }
    if (!line.empty()) shown[line] += members.size();
    for (const auto& one : members) one.relay.get().release(is_shown);
  }
}

}  // namespace levin::detail
