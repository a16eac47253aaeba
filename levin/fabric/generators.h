#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Generator.h>

#include "levin/core/state_dict.h"

namespace levin {

namespace detail {

struct FabricCore;

/// The states of random generators: one rank's, or those of all ranks.
class GeneratorStates {
 public:
  GeneratorStates(std::weak_ptr<FabricCore> core, std::vector<at::Generator> own);

  /// The states of all ranks, for the state_dict() calls that follow. Every rank must call.
  void gather();
  /// ... which are over; and what was loaded before.
  void forget() {
    gathered_ = {};
    loaded_ = {};
  }
  /// Tensors [ranks, bytes]: what gather() has found, else this rank's alone.
  StateDict state_dict() const;
  void load_state_dict(const StateDict& state);
  /// Sets the generators to what was loaded since forget(). False: nothing was.
  bool restore();

 private:
  StateDict here() const;
  std::weak_ptr<FabricCore> core_;
  std::vector<at::Generator> own_;
  StateDict gathered_, loaded_;
};

}  // namespace detail

/// The random generators of a run as a part of a State: the CPU's, that of this rank's device, and those of the
/// program, on every rank. Dropout and everything else that is drawn continues after a load as without one.
///
///     auto random = fabric.generators();
///     levin::State state{{"model", net}, {"optimizer", opt}, {"random", random}};
class Generators {
 public:
  explicit Generators(std::shared_ptr<detail::GeneratorStates> states) : states_(std::move(states)) {}
  StateDict state_dict() const { return states_->state_dict(); }
  void load_state_dict(const StateDict& state) { states_->load_state_dict(state); }

 private:
  std::shared_ptr<detail::GeneratorStates> states_;
};

}  // namespace levin
