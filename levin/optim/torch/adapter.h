#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include <torch/optim/optimizer.h>

#include "levin/optim/optimizer.h"

namespace levin::optim {

/// For optimizers derived from torch::optim::Optimizer: derive from this too, and say what yours does (see
/// OptimizerTraits). One that does not cannot be used where parameters are sharded.
///
///     struct SignSgd : torch::optim::Optimizer, optim::DeclaresTraits {
///       OptimizerTraits traits() const override { return {.elementwise = true}; }
///     };
class DeclaresTraits {
 public:
  virtual ~DeclaresTraits() = default;
  virtual OptimizerTraits traits() const = 0;
};

/// Makes a Levin optimizer of one of torch's, or of a user's own derived from torch::optim::Optimizer:
///
///     auto opt = optim::adapt(torch::optim::Adam(model->parameters(), 1e-3));     // moved in
///     auto opt = optim::adapt(std::make_shared<torch::optim::SGD>(params, 0.1));  // shared
///     auto opt = optim::adapt(adam);                                              // borrowed: adam must outlive it
///
/// The learning rate, momentum and betas can be scheduled: they are brought in step with torch's options, whoever
/// changed them, before each step. zero_grad leaves bucket views alone. State is saved in Python's layout for Adam,
/// AdamW, SGD, RMSprop, Adagrad and LBFGS; for others only the learning rate is, and a warning says so. LBFGS needs
/// step(closure). A tied parameter that is listed twice in a group is stepped once.
Optimizer adapt(std::shared_ptr<torch::optim::Optimizer> optimizer);
Optimizer adapt(torch::optim::Optimizer& optimizer);

/// The torch optimizer behind an adapter; null for any other optimizer.
const torch::optim::Optimizer* adapted(const OptimizerImpl& optimizer);

template <class T>
requires std::derived_from<T, torch::optim::Optimizer> &&(!std::is_lvalue_reference_v<T>)Optimizer
    adapt(T&& optimizer) {
  return adapt(std::static_pointer_cast<torch::optim::Optimizer>(std::make_shared<T>(std::move(optimizer))));
}

}  // namespace levin::optim
