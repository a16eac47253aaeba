#pragma once

#include <string>

#include "levin/compile/graph.h"

namespace levin::compile {

/// Joins operators into groups (FusedCall) where one kernel can make them: elementwise chains, reductions along rows
/// with what stands before and behind them, sums over columns beside them. A group computes again what is cheaper than
/// to keep between forward and backward. Returns a line for the report; empty where nothing was joined.
std::string fuse(Graph& graph);

}  // namespace levin::compile
