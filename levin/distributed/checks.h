#pragma once

#include <string_view>

#include "levin/distributed/collective.h"

namespace levin::detail {

/// "float32 [4, 2]"
std::string describe(const Tensor& tensor);

/// Refusals that are the same in every group; each is an Error that names the operation.
void check_dense(std::string_view operation, const Tensor& tensor);
void check_reducible(std::string_view operation, const Tensor& tensor, ReduceOp op);
void check_source(std::string_view operation, int src, int size);
/// The first dimension must be divisible among the ranks.
void check_scatterable(const Tensor& input, int size);

/// "mean"
std::string_view word_of(ReduceOp op);

}  // namespace levin::detail
