#pragma once

#include "levin/optim/optimizer.h"

namespace levin::optim {

/// Steps each parameter during backward, as soon as its gradient is whole, and frees the gradient: at no time is there
/// more than about one of them. Used in place of the optimizer it is made from, with the same state:
///
///     optim::OptimizerInBackward opt(optim::AdamW(model->parameters(), {.lr = 3e-4}));
///     loss.backward();   // parameters move here
///     opt.step();        // those whose gradient came another way; the end of the step
///
/// Every backward is a step, and `step()` must follow it: what needs all gradients at once cannot be had. A second
/// backward before `step()` (accumulation of gradients), a loss scaler (16-mixed) and clipping by norm are Errors.
/// After a backward that threw, `zero_grad()` begins the next step, and warns how many parameters were stepped already.
/// Hooks that were on the parameters before are kept and called first. They are taken off when the last handle goes.
/// The optimizer must be able to step a part of its parameters, as all of Levin's can.
class OptimizerInBackward : public Optimizer {
 public:
  explicit OptimizerInBackward(const Optimizer& optimizer);
};

namespace detail {

/// The optimizer that steps this parameter during backward; empty when there is none.
std::string stepped_in_backward_by(const Tensor& param);
/// Whether it is an OptimizerInBackward, or one stands inside it.
bool steps_in_backward(const Optimizer& optimizer);

}  // namespace detail
}  // namespace levin::optim
