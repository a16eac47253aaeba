#pragma once

#include <functional>
#include <map>
#include <string>

#include "levin/optim/forwarding.h"

namespace levin::detail {

/// An optimizer of which this rank steps some parameters, and has the others without rows. Its state names all of them,
/// as that of one process does: for a parameter that is elsewhere the state has no rows, and counts as many steps. Rank
/// 0, which writes checkpoints, must know of every tensor that they hold.
class StageOptimizer final : public optim::ForwardingOptimizer {
 public:
  StageOptimizer(Optimizer inner, std::function<bool(const Tensor& param)> is_elsewhere)
      : ForwardingOptimizer(std::move(inner)), is_elsewhere_(std::move(is_elsewhere)) {}

  void step() override;
  StateDict state_dict() const override;
  bool makes_room(const StateDict&) const override { return false; }  // its state_dict is not the inner one's
  void load_state_dict(const StateDict& state) override;

 private:
  /// Of one parameter that is elsewhere.
  struct Elsewhere {
    double steps = 0;
    std::map<std::string, Tensor> slots = {};
  };
  std::function<bool(const Tensor&)> is_elsewhere_;
  /// By index of the parameter. The tensors stay the same: checkpoints know them by identity.
  mutable std::map<size_t, Elsewhere> elsewhere_;
};

}  // namespace levin::detail
