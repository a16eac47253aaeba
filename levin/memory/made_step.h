#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "levin/memory/estimate.h"

namespace levin::detail {

/// Makes a step whose parameters and buffers are meta tensors, in `dtype` where the model leaves it open. A constructor
/// that loads weights from a file runs with memory on the CPU, and its values are let go after.
TrainingStep make_without_data(const MakeTrainingStep& make, std::optional<c10::ScalarType> dtype);

}  // namespace levin::detail
