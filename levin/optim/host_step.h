#pragma once

#include <span>

#include "levin/optim/optimizer.h"

namespace levin::optim {

/// Steps some master weights of an optimizer as soon as their gradients are on the host, and writes each new value into
/// the 16-bit copy that is sent back to the device, in the same pass where the optimizer can (SGD, Adam, AdamW). A
/// worker thread may call it while others compute, one call at a time. An Error when the optimizer cannot step a part
/// of its parameters, or cannot under a scale.
///
///     optim::host_step(opt, unit.masters, unit.copies);
void host_step(const Optimizer& optimizer, std::span<const Tensor> params, std::span<const Tensor> copies = {},
               const GradScale* scale = nullptr);

}  // namespace levin::optim
