#pragma once

#include <span>
#include <string>
#include <vector>

#include "levin/core/state_dict.h"

namespace levin::optim::detail {

/// Python's {"state": {"0": {...}}, "param_groups": [{..., "params": [0, 1]}]} taken apart; the pointers are into it.
struct SavedLayout {
  std::vector<const StateDict*> groups;
  /// By group and position; null where nothing was saved.
  std::vector<std::vector<const StateDict*>> states;
};

/// Checks that the saved groups are as many and as large as the ones here (`sizes`); the Error lists what differs.
SavedLayout read_layout(const std::string& optimizer, const StateDict& in, std::span<const size_t> sizes);

/// Whether parameters are numbered from 0 on, in the order of their groups, as state_dict() does it.
bool is_in_order(const StateDict& in);

}  // namespace levin::optim::detail
