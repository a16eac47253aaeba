#include "levin/checkpoint/state.h"

#include "levin/checkpoint/module_state.h"

namespace levin {

StateValue StateRef::save() const {
  if (module_) return module_state_dict(*module_);
  if (tensor_) return *tensor_;
  return save_();
}

void StateRef::load(const StateValue& value) const {
  if (module_)
    load_module_state_dict(*module_, value.to_dict());
  else if (tensor_)
    detail::load_tensor(*tensor_, value.to_tensor());
  else
    load_(value);
}

State::State(std::initializer_list<Item> items) {
  for (const auto& item : items) add(item.name, item.ref);
}

void State::add(std::string name, StateRef ref) {
  LEVIN_CHECK(!find(name), "[state] the name \"", name, "\" is given twice");
  items_.push_back({std::move(name), std::move(ref)});
}

const StateRef* State::find(std::string_view name) const {
  for (const auto& item : items_)
    if (item.name == name) return &item.ref;
  return nullptr;
}

StateDict State::state_dict() const {
  StateDict state;
  for (const auto& item : items_) state[item.name] = item.ref.save();
  return state;
}

}  // namespace levin
