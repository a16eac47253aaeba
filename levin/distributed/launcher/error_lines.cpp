#include "levin/distributed/launcher/error_lines.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "levin/distributed/failure.h"

namespace levin::detail {

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
