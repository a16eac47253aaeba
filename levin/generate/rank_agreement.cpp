#include "levin/generate/rank_agreement.h"

#include <ATen/ops/empty.h>

namespace levin::detail {
namespace {

bool is_alone(const TensorRanks& ranks) {
  return !ranks || ranks->size() == 1;
}

}  // namespace

void follow_first_rank(const TensorRanks& ranks, Tensor& tensor) {
  if (!is_alone(ranks)) ranks->broadcast(tensor);
}

void follow_first_rank(const TensorRanks& ranks, std::vector<SampledToken>& tokens) {
  if (is_alone(ranks)) return;
  auto ids = at::empty({static_cast<int64_t>(tokens.size())}, at::kLong);
  auto* at = ids.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < tokens.size(); ++i) at[i] = tokens[i].id;
  ranks->broadcast(ids);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i].id = at[i];
}

void follow_first_rank(const TensorRanks& ranks, std::vector<bool>& ended) {
  if (is_alone(ranks)) return;
  auto flags = at::empty({static_cast<int64_t>(ended.size())}, at::kLong);
  auto* at = flags.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i < ended.size(); ++i) at[i] = ended[i];
  ranks->broadcast(flags);
  for (size_t i = 0; i < ended.size(); ++i) ended[i] = at[i] != 0;
}

}  // namespace levin::detail
