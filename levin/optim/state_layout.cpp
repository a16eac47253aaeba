#include "levin/optim/state_layout.h"

#include <fmt/format.h>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin::optim::detail {

SavedLayout read_layout(const std::string& optimizer, const StateDict& in, std::span<const size_t> sizes) {
  const auto& states = in.at("state").to_dict();
  const auto& groups = in.at("param_groups").to_list();
  LEVIN_CHECK(groups.size() == sizes.size(), "[", optimizer, ".load_state_dict] the saved state has ", groups.size(),
              " parameter groups, this optimizer has ", sizes.size());
  SavedLayout layout;
  std::vector<std::string> differences;
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& group = groups[g].to_dict();
    const auto& indices = group.at("params").to_list();
    if (indices.size() != sizes[g])
      differences.push_back(fmt::format("group {} has {} parameters saved and {} here", g, indices.size(), sizes[g]));
    layout.groups.push_back(&group);
    auto& of_group = layout.states.emplace_back();
    for (const auto& index : indices) {
      const auto* state = states.find(std::to_string(index.to_int()));
      of_group.push_back(state ? &state->to_dict() : nullptr);
    }
  }
  LEVIN_CHECK(differences.empty(), "[", optimizer,
              ".load_state_dict] the saved groups do not fit: ", join(differences, "; "));
  return layout;
}

bool is_in_order(const StateDict& in) {
  int64_t next = 0;
  for (const auto& group : in.at("param_groups").to_list())
    for (const auto& index : group.to_dict().at("params").to_list())
      if (index.to_int() != next++) return false;
  return true;
}

}  // namespace levin::optim::detail
