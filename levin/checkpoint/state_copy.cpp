#include "levin/checkpoint/state_copy.h"

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"

namespace levin::detail {

StateValue copy_of_state(const StateValue& value) {
  if (value.is_tensor()) {
    const auto& tensor = value.to_tensor();
    if (!tensor.defined()) return Tensor();
    return tensor.is_cpu() ? tensor.detach().clone() : tensor.detach().cpu();
  }
  if (value.is_list()) {
    StateList list;
    for (const auto& element : value.to_list()) list.push_back(copy_of_state(element));
    return list;
  }
  if (value.is_dict()) {
    StateDict dict;
    for (const auto& [name, element] : value.to_dict()) dict[name] = copy_of_state(element);
    return dict;
  }
  return value;
}

void StateUndo::add(const StateRef& ref) {
  saved_.emplace_back(ref, copy_of_state(ref.save()));
}

void StateUndo::put_back() noexcept {
  for (const auto& [ref, value] : saved_) try {
      if (auto* tensor = ref.tensor(); tensor && !value.to_tensor().defined())
        tensor->reset();
      else
        ref.load(value);
    } catch (const std::exception& error) {
      log_warning(concat("[checkpoint.load] something could not be put back as it was: ", one_line(error)));
    }
  saved_.clear();
}

}  // namespace levin::detail
