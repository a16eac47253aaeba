#pragma once

#include <vector>

#include "levin/checkpoint/state.h"
#include "levin/core/state_dict.h"

namespace levin::detail {

/// A tree whose tensors are copies, in host memory.
StateValue copy_of_state(const StateValue& value);

/// What a load is about to change, as it is now. Things that hold tensors are copied to host memory.
class StateUndo {
 public:
  void add(const StateRef& ref);
  /// Puts everything back that was added; what cannot be is said in a line.
  void put_back() noexcept;

 private:
  std::vector<std::pair<StateRef, StateValue>> saved_;
};

}  // namespace levin::detail
