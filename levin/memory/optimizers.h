#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include "levin/optim/optimizer.h"
#include "levin/precision/precision.h"
#include "levin/strategies/layout.h"

namespace levin::detail {

/// What the optimizer of that name says of itself. An unknown name is an Error with the nearest.
OptimizerTraits optimizer_traits(const std::string& name, std::optional<c10::ScalarType> moments = {});
/// An Error, in the words of the strategy, for what its setup would refuse.
void check_possible(const std::string& strategy, const StateLayout& layout, const PrecisionPlan& precision,
                    const std::string& optimizer, const OptimizerTraits& traits);
/// Bytes of each tensor that it keeps for a parameter of these sizes, whose elements have `width` bytes.
std::vector<int64_t> optimizer_tensors(const OptimizerTraits& traits, const std::vector<int64_t>& sizes, int64_t width);

}  // namespace levin::detail
