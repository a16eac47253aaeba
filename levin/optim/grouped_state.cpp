// GroupedOptimizer to and from Python's layout of optimizer.state_dict().
#include <algorithm>
#include <cmath>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "levin/core/error.h"
#include "levin/devices/host_memory.h"
#include "levin/optim/grouped.h"

namespace levin::optim::detail {

std::optional<OptimizerTraits> GroupedOptimizer::traits() const {
  const auto slots = [this](at::IntArrayRef sizes, c10::ScalarType dtype) {
    const auto param = at::empty(sizes, at::TensorOptions(at::kMeta).dtype(dtype));
    std::vector<OptimizerSlot> found;
    if (counts_steps()) found.push_back({"step", {}, at::kFloat});
    unsigned needed = 0;  // by any group
    for (size_t g = 0; g < groups_.size(); ++g) needed |= slots_needed(g, param);
    for (size_t s = 0; s < slot_names().size(); ++s)
      if (needed >> s & 1U) found.push_back({slot_names()[s], slot_shape(s, param), slot_dtype(0, s, param)});
    return found;
  };
  return OptimizerTraits{.elementwise = is_elementwise(),
                         .tensor_sums = takes_tensor_sums(),
                         .slots = slots,
                         .temporaries = step_temporaries(),
                         .narrow_gradients = true};
}

StateDict GroupedOptimizer::state_dict() const {
  StateDict states;
  StateList groups;
  int64_t index = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    StateDict out;
    save_options(g, out);
    if (!std::isnan(initial_lr_[g])) out["initial_lr"] = initial_lr_[g];
    StateList indices;
    for (const auto& param : groups_[g].params) {
      if (const auto found = states_.find(param.unsafeGetTensorImpl()); found != states_.end()) {
        StateDict state;
        if (found->second.step.defined()) state["step"] = found->second.step;
        for (size_t s = 0; s < slot_names().size(); ++s)
          if (found->second.slots[s].defined()) state[slot_names()[s]] = found->second.slots[s];
        if (!state.empty()) states[std::to_string(index)] = std::move(state);
      }
      indices.emplace_back(index++);
    }
    out["params"] = std::move(indices);
    groups.emplace_back(std::move(out));
  }
  return {{"state", std::move(states)}, {"param_groups", std::move(groups)}};
}

SavedLayout GroupedOptimizer::checked(const StateDict& in) {
  std::vector<size_t> sizes;
  for (const auto& group : groups_) sizes.push_back(group.params.size());
  auto saved = read_layout(name_, in, sizes);
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t i = 0; i < groups_[g].params.size(); ++i)
      if (const auto* state = saved.states[g][i]) check_param(g, i, *state);
    if (const auto* initial = saved.groups[g]->find("initial_lr")) (void)initial->to_double();
    StateDict now;
    save_options(g, now);
    try {
      load_options(g, *saved.groups[g]);
    } catch (...) {
      load_options(g, now);
      throw;
    }
    load_options(g, now);
  }
  return saved;
}

bool GroupedOptimizer::check_state_dict(const StateDict& in) {
  (void)checked(in);
  return true;
}

bool GroupedOptimizer::makes_room(const StateDict& state) const {
  return is_in_order(state);
}

void GroupedOptimizer::load_state_dict(const StateDict& in) {
  const auto saved = checked(in);
  at::NoGradGuard no_grad;
  for (size_t g = 0; g < groups_.size(); ++g) {
    load_options(g, *saved.groups[g]);
    const auto* initial = saved.groups[g]->find("initial_lr");
    initial_lr_[g] = initial ? initial->to_double() : std::numeric_limits<double>::quiet_NaN();
    for (size_t i = 0; i < groups_[g].params.size(); ++i) {
      const Tensor& param = groups_[g].params[i];
      const auto* state = saved.states[g][i];
      if (!state) {
        states_.erase(param.unsafeGetTensorImpl());
        continue;
      }
      auto& mine = states_[param.unsafeGetTensorImpl()];
      mine.param = param;
      load_param(mine, g, *state);
    }
  }
  invalidate();
}

void GroupedOptimizer::check_param(size_t group, size_t index, const StateDict& in) const {
  const Tensor& param = groups_[group].params[index];
  bool is_ours = false;
  std::string others;
  for (const auto& [saved, value] : in) {
    if (saved == "step" || value.empty()) continue;
    is_ours = is_ours || std::ranges::any_of(slot_names(), [&](const char* known) { return known == saved; });
    others += (others.empty() ? "\"" : ", \"") + saved + "\"";
  }
  LEVIN_CHECK(is_ours || others.empty(), "[", name_, ".load_state_dict] ", describe(group, index), " has ", others,
              " in the saved state, which is another optimizer's; \"", slot_names()[0], "\" is needed");
  if (const auto* step = in.find("step"); step && counts_steps()) {
    const auto numbers = step->is_tensor() ? step->to_tensor().numel() : 1;
    LEVIN_CHECK(numbers == 1, "[", name_, ".load_state_dict] \"step\" of ", describe(group, index), " has ", numbers,
                " numbers in the saved state, 1 is needed");
    if (!step->is_tensor()) (void)step->to_double();
  }
  for (size_t s = 0; s < slot_names().size(); ++s) {
    const auto* value = in.find(slot_names()[s]);
    if (!value || value->empty()) continue;
    const auto shape = slot_shape(s, param);
    const auto found = value->to_tensor().sizes();
    LEVIN_CHECK(found == at::IntArrayRef(shape), "[", name_, ".load_state_dict] \"", slot_names()[s], "\" of ",
                describe(group, index), " has shape ", fmt::format("{}", found), " in the saved state, ",
                fmt::format("{}", shape), " is needed");
  }
}

// Copies into tensors that are there, so that their addresses stay; what was not saved is made again by the next step.
void GroupedOptimizer::load_param(ParamState& state, size_t group, const StateDict& in) {
  const Tensor& param = state.param;
  if (counts_steps()) {
    const auto device = steps_on_host() ? c10::Device(c10::kCPU) : param.device();
    const auto* saved = in.find("step");
    if (!state.step.defined() || state.step.device() != device)
      state.step = at::zeros({}, at::TensorOptions(device).dtype(at::kFloat));
    if (saved && saved->is_tensor())
      state.step.copy_(saved->to_tensor().reshape({}));
    else
      state.step.fill_(saved ? saved->to_double() : 0);
  }
  for (size_t s = 0; s < slot_names().size(); ++s) {
    Tensor& slot = state.slots[s];
    const auto* saved = in.find(slot_names()[s]);
    if (!saved || saved->empty()) {
      slot.reset();
      continue;
    }
    const Tensor& value = saved->to_tensor();
    const auto options = param.options().dtype(slot_dtype(group, s, param));
    const bool fits = slot.defined() && slot.sizes() == value.sizes() && slot.device() == param.device() &&
                      slot.scalar_type() == options.dtype();
    const bool follows = !in_memory_order(param) && value.sizes() == param.sizes();
    if (!fits)
      slot = placed(on_large_pages(follows ? at::empty_like(param, options) : at::empty(value.sizes(), options)));
    if (!value.is_meta()) slot.copy_(value);
  }
}

}  // namespace levin::optim::detail
