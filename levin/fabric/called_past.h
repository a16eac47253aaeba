#pragma once

#include <memory>
#include <vector>

#include "levin/fabric/fabric_module.h"

namespace levin::detail {

using ModuleCalls = std::vector<std::shared_ptr<ModuleCall>>;

/// Throws when the graph of a loss has parameters of a module of `idle`, which has not run since the last backward: it
/// was called past what setup returned (`net->forward(x)`, or by the holder that setup was given). Walks the graph.
void check_called(const Tensor& loss, const ModuleCalls& idle, const ModuleCalls& armed);

}  // namespace levin::detail
