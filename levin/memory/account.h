#pragma once

#include "levin/memory/estimate.h"
#include "levin/memory/step.h"

namespace levin::detail {

/// What a traced step takes under a layout. `asked` is the precision of the run.
MemoryEstimate account_for(const StepTrace& trace, const StateLayout& layout, const PrecisionPlan& asked,
                           const MemoryQuestion& question);

}  // namespace levin::detail
