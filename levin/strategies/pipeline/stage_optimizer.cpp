#include "levin/strategies/pipeline/stage_optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include "levin/core/state_dict.h"

namespace levin::detail {
namespace {

/// The number of steps in the type that the optimizer has for it.
StateValue counted(const StateValue& like, double steps) {
  if (like.is_tensor()) return at::full_like(like.to_tensor(), steps);
  if (std::holds_alternative<int64_t>(like.variant())) return static_cast<int64_t>(steps);
  return steps;
}

/// What an optimizer keeps for a parameter, by its traits.
StateDict declared_state(const Optimizer& optimizer, const Tensor& param) {
  StateDict state;
  const auto traits = optimizer.traits();
  if (!traits || !traits->slots) return state;
  for (const auto& slot : traits->slots(param.sizes(), param.scalar_type()))
    state[slot.name] = at::empty(slot.sizes, param.options().dtype(slot.dtype));
  return state;
}

}  // namespace

void StageOptimizer::step() {
  inner().step();
  const auto params = inner().all_params();
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].grad().defined() && is_elsewhere_(params[i])) elsewhere_[i].steps += 1;
}

StateDict StageOptimizer::state_dict() const {
  auto state = inner().state_dict();
  const auto* found = state.find("state");
  if (!found || !found->is_dict() || elsewhere_.empty()) return state;
  const StateDict own = found->to_dict();
  const auto params = inner().all_params();
  // What is kept for a parameter is seen from one that has state here; where none trains, the traits say it.
  const StateDict* seen = nullptr;
  Tensor seen_param;
  for (size_t i = 0; i < params.size() && !seen; ++i)
    if (const auto* entry = own.find(std::to_string(i)); entry && entry->is_dict())
      seen = &entry->to_dict(), seen_param = params[i];
  StateDict all;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto name = std::to_string(i);
    const auto kept = elsewhere_.find(i);
    if (kept == elsewhere_.end()) {
      if (const auto* entry = own.find(name)) all[name] = *entry;
      continue;
    }
    StateDict entry;
    const auto like = seen ? *seen : declared_state(inner(), params[i]);
    const auto like_param = seen ? seen_param : params[i];
    for (const auto& [slot, value] : like) {
      if (slot == "step") {
        entry[slot] = counted(value, kept->second.steps);
      } else if (value.is_tensor() && value.to_tensor().sizes() == like_param.sizes()) {
        auto& tensor = kept->second.slots[slot];
        if (!tensor.defined()) tensor = at::empty(params[i].sizes(), value.to_tensor().options());
        entry[slot] = tensor;
      } else {
        entry[slot] = value;
      }
    }
    if (!entry.empty()) all[name] = std::move(entry);
  }
  state["state"] = std::move(all);
  return state;
}

void StageOptimizer::load_state_dict(const StateDict& state) {
  auto mine = state;
  const auto* found = state.find("state");
  if (found && found->is_dict()) {
    auto own = found->to_dict();
    const auto params = inner().all_params();
    elsewhere_.clear();
    for (size_t i = 0; i < params.size(); ++i) {
      if (!is_elsewhere_(params[i])) continue;
      const auto name = std::to_string(i);
      const auto* entry = own.find(name);
      if (!entry || !entry->is_dict()) continue;
      const auto* step = entry->to_dict().find("step");
      elsewhere_[i].steps = !step ? 1 : step->is_tensor() ? step->to_tensor().item<double>() : step->to_double();
      own.erase(name);
    }
    mine["state"] = std::move(own);
  }
  inner().load_state_dict(mine);
}

}  // namespace levin::detail
