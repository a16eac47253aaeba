#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/optim/optimizer.h>

#include "levin/core/state_dict.h"
#include "levin/optim/optimizer.h"

namespace levin::optim::detail {

using at::Tensor;
using TorchOptions = torch::optim::OptimizerOptions;
using TorchState = torch::optim::OptimizerParamState;

/// How one kind of torch's optimizers looks from outside: its numbers by torch's names, and its state in Python's
/// layout.
class TorchKind {
 public:
  virtual ~TorchKind() = default;

  /// Calls f(name, number) for the numbers of a group that a scheduler may change, always in the same order.
  virtual void each_number(TorchOptions& options, const std::function<void(const char*, double&)>& f) const = 0;
  virtual void save_options(TorchOptions& options, StateDict& out) const = 0;
  virtual void load_options(TorchOptions& options, const StateDict& in) const = 0;
  /// False: only options are saved, and the three below are never called.
  virtual bool has_state() const = 0;
  virtual StateDict save_state(TorchState& state) const = 0;
  /// `where` is for the Error about a tensor that does not fit the parameter.
  virtual std::unique_ptr<TorchState> load_state(const StateDict& in, const Tensor& param,
                                                 const std::string& where) const = 0;
  /// The state of a parameter before its first step; null when the optimizer makes it itself.
  virtual std::unique_ptr<TorchState> fresh_state(const TorchOptions& options, const Tensor& param) const = 0;
};

/// The kind of an optimizer: Adam, AdamW, SGD, RMSprop, Adagrad, LBFGS, or one that has a learning rate and no more to
/// tell.
const TorchKind& kind_of(const torch::optim::Optimizer& optimizer);

/// What torch's own optimizers would say of themselves; none for any other class, one that is derived from them too: it
/// may do anything in its step.
std::optional<OptimizerTraits> traits_of(const torch::optim::Optimizer& optimizer);

}  // namespace levin::optim::detail
