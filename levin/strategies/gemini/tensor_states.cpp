#include "levin/strategies/gemini/tensor_states.h"

namespace levin::detail {

bool is_legal(TensorState from, TensorState to) {
  using enum TensorState;
  switch (from) {
    case kFree:
      return to == kHold || to == kCompute;
    case kHold:
      return to == kFree || to == kCompute;
    case kCompute:
      return to == kHold || to == kHoldAfterBackward;
    case kHoldAfterBackward:
      return to == kCompute || to == kReadyForReduce;
    case kReadyForReduce:
      return to == kHold;
  }
  return false;
}

ChunkStates::ChunkStates(size_t tensors) : states_(tensors, TensorState::kFree) {
  counts_[static_cast<size_t>(TensorState::kFree)] = tensors;
}

bool ChunkStates::move(size_t tensor, TensorState to) {
  auto& state = states_.at(tensor);
  if (state == to) return true;
  if (!is_legal(state, to)) return false;
  --counts_[static_cast<size_t>(state)];
  ++counts_[static_cast<size_t>(to)];
  state = to;
  return true;
}

void ChunkStates::move_all(TensorState to) {
  for (size_t i = 0; i < states_.size(); ++i) move(i, to);
}

bool ChunkStates::can_release() const {
  return count(TensorState::kHold) + count(TensorState::kHoldAfterBackward) == states_.size();
}

}  // namespace levin::detail
