#include "levin/strategies/sharding/group_plan.h"

#include <map>
#include <tuple>
#include <utility>

namespace levin::detail {

int64_t GroupedParam::numel() const {
  int64_t all = 1;
  for (const auto size : sizes) all *= size;
  return all;
}

GroupPlan group_by_unit(const std::vector<GroupedParam>& params, size_t units, int64_t persistence_threshold,
                        int64_t most_together) {
  using Key = std::tuple<size_t, c10::ScalarType, int>;
  std::map<Key, std::vector<size_t>> members;
  std::map<std::pair<size_t, c10::ScalarType>, std::pair<int, int64_t>> last;  // group of the unit, and its elements
  for (size_t i = 0; i < params.size(); ++i) {
    const auto numel = params[i].numel();
    const auto owner = numel < persistence_threshold ? units : params[i].unit;
    auto& [part, elements] = last[{owner, params[i].dtype}];
    if (most_together > 0 && elements > 0 && elements + numel > most_together) {
      ++part;
      elements = 0;
    }
    elements += numel;
    members[{owner, params[i].dtype, part}].push_back(i);
  }
  GroupPlan plan;
  plan.needs.resize(units + 1);
  for (auto& [key, of_group] : members) {
    plan.needs[std::get<0>(key)].push_back(plan.groups.size());
    plan.groups.push_back({std::move(of_group), std::get<1>(key)});
  }
  return plan;
}

}  // namespace levin::detail
