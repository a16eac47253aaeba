#include "levin/fabric/fp8_state.h"

#include "levin/core/error.h"
#include "levin/fabric/fabric_core.h"

namespace levin::detail {
namespace {

std::string module_name(size_t index) {
  return concat("module_", index);
}

}  // namespace

Fp8State::Fp8State(const std::shared_ptr<FabricCore>& core) : core_(core) {
  for (const auto& weak : core->calls)
    if (const auto call = weak.lock(); call && call->fp8 && call->fp8->state().defined()) layers_.push_back(call->fp8);
}

StateDict Fp8State::state_dict() const {
  StateDict all;
  for (size_t i = 0; i < layers_.size(); ++i) {
    StateList names;
    for (const auto& name : layers_[i]->names()) names.emplace_back(name);
    all[module_name(i)] = StateDict{{"weights", std::move(names)}, {"histories", layers_[i]->state().unsqueeze(0)}};
  }
  return all;
}

StateDict Fp8State::gathered(StateDict here) const {
  if (core_->placement.world_size < 2) return here;
  auto& strategy = *core_->strategy;
  for (auto& [name, value] : here) {
    auto module = value.to_dict();
    const auto histories = module.at("histories").to_tensor()[0].to(strategy.device());
    module["histories"] = strategy.group().all_gather(histories).cpu();
    value = std::move(module);
  }
  return here;
}

void Fp8State::load_state_dict(const StateDict& state) {
  if (empty()) return;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto* found = state.find(module_name(i));
    if (!found) continue;
    const auto& module = found->to_dict();
    std::vector<std::string> names;
    for (const auto& name : module.at("weights").to_list()) names.push_back(name.to_string());
    const auto& ranks = module.at("histories").to_tensor();  // [ranks, weights, 3, history + 2]
    LEVIN_CHECK(ranks.dim() == 4 && ranks.size(0) > 0, "[fp8] histories must be [ranks, weights, 3, history + 2], got ",
                ranks.sizes());
    const auto& placement = core_->placement;
    layers_[i]->load_state(names, ranks.size(0) == 1                      ? ranks[0]
                                  : ranks.size(0) == placement.world_size ? ranks[placement.global_rank]
                                                                          : ranks.amax({0}));
  }
  ++core_->version;
}

}  // namespace levin::detail
