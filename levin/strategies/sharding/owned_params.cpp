#include "levin/strategies/sharding/owned_params.h"

#include <algorithm>
#include <unordered_map>

#include "levin/nn/module_access.h"

namespace levin::detail {
namespace {

struct Owners {
  const std::vector<SelectedUnit>& units;
  std::vector<size_t> chain = {};  // units around the module at hand, outermost first
  std::unordered_map<c10::TensorImpl*, size_t> index = {};
  std::vector<OwnedParam> params = {};
  std::vector<std::vector<size_t>> chains = {};

  void walk(torch::nn::Module& module, const std::string& prefix) {
    const auto found =
        std::find_if(units.begin(), units.end(), [&](const auto& unit) { return unit.module == &module; });
    const bool is_unit = found != units.end();
    if (is_unit) chain.push_back(static_cast<size_t>(found - units.begin()));
    for (auto& item : ModuleAccess::parameters(module)) {
      if (!item.value().defined()) continue;
      const auto [at, is_new] = index.emplace(item.value().unsafeGetTensorImpl(), params.size());
      if (is_new) {
        params.push_back({prefix + item.key(), item.value()});
        chains.push_back(chain);
      } else {
        auto& common = chains[at->second];
        const auto end = std::mismatch(common.begin(), common.end(), chain.begin(), chain.end()).first;
        common.erase(end, common.end());
      }
    }
    for (auto& child : ModuleAccess::children(module)) walk(*child.value(), prefix + child.key() + ".");
    if (is_unit) chain.pop_back();
  }
};

}  // namespace

std::vector<OwnedParam> owned_params(torch::nn::Module& module, const std::vector<SelectedUnit>& units) {
  Owners owners{units};
  owners.walk(module, "");
  for (size_t i = 0; i < owners.params.size(); ++i)
    owners.params[i].unit = owners.chains[i].empty() ? units.size() : owners.chains[i].back();
  return std::move(owners.params);
}

}  // namespace levin::detail
