#pragma once

#include <cmath>
#include <vector>

#include <ATen/Functions.h>

#include "levin/kernels/block_sparse/attention.h"

namespace levin::testing {

/// As BigBird has it: the ends, the neighbours and random blocks, which may be seen twice.
inline kernels::BlockPlan random_plan(int64_t heads, int64_t blocks, int64_t size, int64_t random,
                                      c10::Device device = c10::kCPU) {
  std::vector<std::vector<std::vector<int32_t>>> seen(static_cast<size_t>(heads));
  for (auto& of_head : seen)
    for (int64_t i = 1; i < blocks - 1; ++i) {
      std::vector<int32_t> row{0, static_cast<int32_t>(blocks - 1)};
      for (int64_t j = std::max<int64_t>(1, i - 1); j <= std::min(blocks - 2, i + 1); ++j)
        row.push_back(static_cast<int32_t>(j));
      for (int64_t r = 0; r < random; ++r) row.push_back(at::randint(blocks, {1}, at::kLong).item<int32_t>());
      of_head.push_back(row);
    }
  return kernels::block_plan(seen, size, device);
}

/// The same by attention to all, in float32 or float64, with the logarithm of how often a key is seen.
inline at::Tensor seen_densely(const at::Tensor& qkv, const at::Tensor& mask, const kernels::BlockPlan& plan) {
  const auto blocks = plan.seen.size(1) + 2, heads = qkv.size(3);
  auto counts = at::zeros({heads, blocks, blocks}, qkv.options().requires_grad(false));
  counts.select(1, 0).fill_(1);
  counts.select(1, blocks - 1).fill_(1);
  counts.slice(1, 1, blocks - 1)
      .scatter_add_(2, plan.seen.clamp_min(0).to(qkv.device(), at::kLong),
                    plan.seen.ge(0).to(qkv.device(), qkv.scalar_type()));
  const auto often =
      counts.repeat_interleave(plan.block_size, 1).repeat_interleave(plan.block_size, 2).log().unsqueeze(0);
  const auto parts = qkv.permute({2, 0, 3, 1, 4});
  auto scores = at::matmul(parts[0], parts[1].transpose(-1, -2)) / std::sqrt(static_cast<double>(qkv.size(4))) + often;
  if (mask.defined()) scores = scores + mask.eq(0).to(qkv.scalar_type()).unsqueeze(1).unsqueeze(1) * -10000.0;
  auto mixed = at::matmul(scores.softmax(-1), parts[2]).transpose(1, 2);
  if (mask.defined()) mixed = mixed * mask.ne(0).to(qkv.scalar_type()).unsqueeze(-1).unsqueeze(-1);
  return mixed.flatten(2);
}

}  // namespace levin::testing
