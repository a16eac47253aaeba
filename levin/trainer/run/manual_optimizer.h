#pragma once

#include "levin/optim/optimizer.h"

namespace levin::detail {

class Run;

/// An optimizer that training_step drives itself: its steps are counted, with the hooks around them.
Optimizer for_manual_optimization(Optimizer optimizer, Run& run);
/// The optimizer as Fabric knows it: without what counts the steps of manual optimization.
Optimizer as_set_up(const Optimizer& optimizer);

}  // namespace levin::detail
