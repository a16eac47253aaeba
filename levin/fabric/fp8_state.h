#pragma once

#include <memory>
#include <vector>

#include "levin/core/state_dict.h"
#include "levin/kernels/fp8/fp8_layers.h"

namespace levin::detail {

struct FabricCore;

/// The float8 histories of the modules that a Fabric has set up, in the order of setup: the part kFp8State of its
/// checkpoints. A run that resumes with them has the scales of one that was never interrupted.
class Fp8State {
 public:
  explicit Fp8State(const std::shared_ptr<FabricCore>& core);

  /// There is nothing to save: another precision, a recipe without histories, or no module yet.
  bool empty() const { return layers_.empty(); }
  /// Of this rank.
  StateDict state_dict() const;
  /// Of all ranks, whose inputs and scales differ; `here` is what state_dict() gave on this one. Every rank must call.
  StateDict gathered(StateDict here) const;
  /// Of this rank, or of as many ranks as there are now: each takes its own. Of another number of ranks each takes the
  /// largest numbers of all. A module that is not in the state stays as it is.
  void load_state_dict(const StateDict& state);

 private:
  std::shared_ptr<FabricCore> core_;
  std::vector<std::shared_ptr<kernels::Fp8Layers>> layers_;
};

/// Its name in checkpoints.
inline constexpr const char* kFp8State = "fp8_histories";

}  // namespace levin::detail
