#include "levin/memory/shapes/shape_call.h"

namespace levin::detail {
namespace {

constexpr int64_t kSum = 0, kMax = 2;

/// The bags, and what backward finds them by: the bag of each index, its size, and the rows of the largest values.
void embedding_bag(ShapeCall& call) {
  const auto &weight = call.tensor("weight"), &indices = call.tensor("indices"), &offsets = call.tensor("offsets");
  const auto mode = call.integer("mode");
  const auto bags = offsets.size(0) - (call.flag("include_last_offset") ? 1 : 0);
  call.result({bags, weight.size(1)}, weight);
  const bool is_fast = mode == kSum;
  call.result({is_fast ? 0 : indices.size(0)}, indices);
  call.result({bags}, indices);
  mode == kMax ? call.result({bags, weight.size(1)}, indices) : call.result({bags}, indices);
}

void embedding_bag_backward(ShapeCall& call) {
  const auto& grad = call.tensor("grad");
  if (call.integer("mode") == kMax) call.scratch({call.integer("num_weights"), grad.size(1)}, grad.scalar_type());
  call.result({call.integer("num_weights"), grad.size(1)}, grad);
}

}  // namespace

std::span<const ShapeRule> embedding_shapes() {
  static const std::vector<ShapeRule> rules{
      {"embedding_dense_backward",
       [](ShapeCall& call) {
         const auto& grad = call.tensor("grad_output");
         call.result({call.integer("num_weights"), grad.size(-1)}, grad);
       }},
      {"_embedding_bag", embedding_bag},
      {"_embedding_bag_forward_only", embedding_bag},
      {"_embedding_bag_backward", embedding_bag_backward},
      {"_embedding_bag_dense_backward", embedding_bag_backward},
      {"_embedding_bag_per_sample_weights_backward",
       [](ShapeCall& call) { call.result(call.tensor("indices").sizes().vec(), call.tensor("grad")); }},
      {"embedding_renorm_", writes_arguments},
  };
  return rules;
}

}  // namespace levin::detail
