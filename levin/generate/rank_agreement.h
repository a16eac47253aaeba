#pragma once

#include <vector>

#include "levin/generate/sampler.h"
#include "levin/nn/tensor/part.h"

/// Ranks that have one model together go through the same tokens: what rank 0 has chosen counts. Without ranks nothing
/// happens.
namespace levin::detail {

/// Makes a tensor of the host rank 0's.
void follow_first_rank(const TensorRanks& ranks, Tensor& tensor);
/// The ids of tokens.
void follow_first_rank(const TensorRanks& ranks, std::vector<SampledToken>& tokens);
/// Whether rows end.
void follow_first_rank(const TensorRanks& ranks, std::vector<bool>& ended);
inline bool is_first_rank(const TensorRanks& ranks) {
  return !ranks || ranks->rank() == 0;
}

}  // namespace levin::detail
