#pragma once

#include <span>

#include "levin/generate/sampler.h"

namespace levin::detail {

/// Logits [rows, V] without numbers that are none, and without infinite ones, in the rows whose options ask for it.
Tensor without_invalid(const Tensor& logits, std::span<const SampledRow* const> rows);

}  // namespace levin::detail
