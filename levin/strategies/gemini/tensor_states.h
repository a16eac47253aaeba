#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace levin::detail {

/// What is going on with a tensor of a chunk.
enum class TensorState : uint8_t { kFree, kHold, kCompute, kHoldAfterBackward, kReadyForReduce };

/// Whether a tensor may go from one state to the other.
bool is_legal(TensorState from, TensorState to);

/// The states of the tensors of one chunk, with the number of tensors in each. A step that is not legal is passed over:
/// a gradient may come before or after the end of the operation that made it.
class ChunkStates {
 public:
  explicit ChunkStates(size_t tensors);

  /// Whether the tensor is in that state now.
  bool move(size_t tensor, TensorState to);
  /// The same for all tensors.
  void move_all(TensorState to);
  TensorState at(size_t tensor) const { return states_[tensor]; }
  size_t count(TensorState state) const { return counts_[static_cast<size_t>(state)]; }

  /// Nobody computes with it: all tensors are held only.
  bool can_release() const;
  /// The gradients of all tensors are there.
  bool can_reduce() const { return count(TensorState::kReadyForReduce) == states_.size(); }
  bool computing() const { return count(TensorState::kCompute) > 0; }

 private:
  std::vector<TensorState> states_;
  std::array<size_t, 5> counts_{};
};

}  // namespace levin::detail
