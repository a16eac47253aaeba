#include "levin/optim/host_step.h"

#include "levin/core/error.h"

namespace levin::optim {

void host_step(const Optimizer& optimizer, std::span<const Tensor> params, std::span<const Tensor> copies,
               const GradScale* scale) {
  LEVIN_CHECK(optimizer, "[host_step] the optimizer's handle is empty");
  LEVIN_CHECK(optimizer.impl()->step_params(params, scale, copies), "[host_step] ", optimizer.name(),
              scale ? " cannot step a part of its parameters under a loss scaler; SGD, Adam, AdamW and Adagrad can"
                    : " cannot step a part of its parameters; Levin's own optimizers can");
}

}  // namespace levin::optim
