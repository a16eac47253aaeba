#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "levin/memory/groups.h"
#include "levin/precision/precision.h"
#include "levin/strategies/layout.h"

namespace levin::detail {

/// Bytes of an element: of a parameter as it is kept and computed with, of a gradient while it is reduced and as it is
/// kept, of the sum of those of micro-batches before it is reduced, and of what the optimizer keeps.
struct StateWidths {
  int64_t kept, computed, reduced, gradient, accumulated, optimizer;
};
StateWidths state_widths(const StateLayout& layout, const PrecisionPlan& precision);
/// Of parameters while they are computed with; none: as they are made.
std::optional<c10::ScalarType> computed_dtype(const StateLayout& layout, const PrecisionPlan& precision);

/// How the groups of a layout are kept on a device.
GroupFigures group_figures(const StateLayout& layout, const PrecisionPlan& precision, c10::DeviceType device);
/// Whether there are groups between the parameters and the model, and they have something to do.
bool is_sharded(const StateLayout& layout, const PrecisionPlan& precision);

}  // namespace levin::detail
