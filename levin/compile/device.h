#pragma once

#include <functional>
#include <memory>

#include "levin/compile/graph.h"
#include "levin/devices/graphs.h"

namespace levin::compile {

/// Makes a graph faster and says in lines what it did.
using Optimize = std::function<std::vector<std::string>(Graph&)>;

/// A device whose captured steps are traced and optimized. `plain` captures the step as it is, `device` the optimized
/// list of calls; each has a memory pool of its own. The first replay also runs the step as it is, from the same state,
/// and compares: what differs, or is slower, is not used. Without `optimize` it is all passes of optimize.h.
std::shared_ptr<levin::detail::GraphDevice> fused_graphs(std::shared_ptr<levin::detail::GraphDevice> plain,
                                                         std::shared_ptr<levin::detail::GraphDevice> device,
                                                         Optimize optimize = {});
/// The same on the CPU, where a captured step is a list of calls.
std::shared_ptr<levin::detail::GraphDevice> fused_graphs_on_cpu(Optimize optimize = {});

}  // namespace levin::compile
