#pragma once

#include "levin/plots/drawing.h"

namespace levin::nn {

/// Which rank computes which blocks of causal attention, and how much each has to do: in one run each, and balanced.
/// Rows are queries, columns keys, numbers the steps of the ring.
Drawing draw_context(int ranks);

}  // namespace levin::nn
