#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace levin::detail {

/// A parameter as it is put into a group.
struct GroupedParam {
  std::string name;
  std::vector<int64_t> sizes;
  /// Of its shards.
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// The unit that owns it; their number: the root.
  size_t unit = 0;

  int64_t numel() const;
};

/// Which parameters are gathered together, and by whom.
struct GroupPlan {
  struct Group {
    /// Their positions in what was planned.
    std::vector<size_t> params;
    c10::ScalarType dtype = c10::ScalarType::Float;
    /// As errors name it; empty: by its unit.
    std::string name = {};
  };
  std::vector<Group> groups;
  /// Groups that each unit computes with, the root last.
  std::vector<std::vector<size_t>> needs;
  /// Sharding would save nothing: groups stay gathered within a step.
  bool stays_gathered = false;
};

/// A group for each unit and dtype: what is gathered together has one type. Parameters of fewer elements than
/// `persistence_threshold` are the root's. A unit of more than `most_together` elements has several groups; 0: one.
GroupPlan group_by_unit(const std::vector<GroupedParam>& params, size_t units, int64_t persistence_threshold,
                        int64_t most_together);

}  // namespace levin::detail
