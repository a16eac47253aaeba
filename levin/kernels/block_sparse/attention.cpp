#include "levin/kernels/block_sparse/attention.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/kernels/block_sparse/attention_detail.h"
#include "levin/kernels/linear/product_dtype.h"
#include "levin/kernels/operators.h"
#include "levin/kernels/played_device.h"

namespace levin::kernels {
namespace {

using detail::BlockSparseResult;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<Tensor>;

BlockSparseResult block_sparse_on_cpu(const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen, const Tensor&) {
  return {detail::block_sparse_by_aten(qkv, mask, seen), at::empty({0}, qkv.options())};
}

Tensor block_sparse_backward_on_cpu(const Tensor& grad, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                    const Tensor&, const Tensor&, const Tensor&) {
  return detail::block_sparse_backward_by_aten(grad, qkv, mask, seen);
}

BlockSparseResult block_sparse_on_meta(const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                       const Tensor& seen_by) {
  if (played_device() != c10::kCUDA || !detail::runs_block_sparse_kernel(qkv, seen))
    return block_sparse_on_cpu(qkv, mask, seen, seen_by);
  return {at::empty({qkv.size(0), qkv.size(1), qkv.size(3) * qkv.size(4)}, qkv.options()),
          at::empty({qkv.size(0), qkv.size(3), qkv.size(1)}, qkv.options().dtype(at::kFloat))};
}

Tensor block_sparse_backward_on_meta(const Tensor& grad, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                                     const Tensor&, const Tensor&, const Tensor& sums) {
  if (sums.numel() == 0) return detail::block_sparse_backward_by_aten(grad, qkv, mask, seen);
  const auto products = at::empty_like(sums);  // gone when the gradients are there
  return at::empty(qkv.sizes(), qkv.options());
}

struct BlockSparseOps : detail::Operators {
  detail::Operator<decltype(block_sparse_on_cpu)> forward =
      add("block_sparse_attention(Tensor qkv, Tensor? mask, Tensor seen, Tensor seen_by) -> (Tensor, Tensor)",
          block_sparse_on_meta, block_sparse_on_cpu);
  detail::Operator<decltype(block_sparse_backward_on_cpu)> backward =
      add("block_sparse_attention_backward(Tensor grad, Tensor qkv, Tensor? mask, Tensor seen, Tensor seen_by, Tensor "
          "out, Tensor sums) -> Tensor",
          block_sparse_backward_on_meta, block_sparse_backward_on_cpu);

  BlockSparseOps() { detail::register_block_sparse_cuda(cuda); }
};

struct BlockSparseFunction : torch::autograd::Function<BlockSparseFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& qkv, const MaybeTensor& mask, const Tensor& seen,
                        const Tensor& seen_by) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [out, sums] = detail::operators<BlockSparseOps>().forward.call(qkv, mask, seen, seen_by);
    context->save_for_backward({qkv, mask.value_or(Tensor()), seen, seen_by, out, sums});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto& qkv = saved[0];
    const auto mask = saved[1].defined() ? MaybeTensor(saved[1]) : std::nullopt;
    if (at::GradMode::is_enabled()) {
      // The kernels have no second derivative; plain operators have.
      const auto out = detail::block_sparse_by_aten(qkv, mask, saved[2]);
      return {torch::autograd::grad({out}, {qkv}, {grads[0]}, std::nullopt, /*create_graph=*/true)[0], {}, {}, {}};
    }
    const at::AutoDispatchBelowADInplaceOrView below;
    return {detail::operators<BlockSparseOps>().backward.call(grads[0].contiguous(), qkv, mask, saved[2], saved[3],
                                                              saved[4], saved[5]),
            {},
            {},
            {}};
  }
};

void check_block_sparse(const Tensor& qkv, const Tensor& mask, const BlockPlan& plan) {
  LEVIN_CHECK(qkv.dim() == 5 && qkv.size(2) == 3, "[block_sparse_attention] needs qkv [B, T, 3, H, D], got ",
              qkv.sizes());
  LEVIN_CHECK(!mask.defined() || (mask.dim() == 2 && mask.size(0) == qkv.size(0) && mask.size(1) == qkv.size(1)),
              "[block_sparse_attention] the mask ", mask.sizes(), " does not go with qkv ", qkv.sizes());
  const auto& seen = plan.seen;
  LEVIN_CHECK(seen.defined() && seen.dim() == 3 && seen.size(0) == qkv.size(3) &&
                  (seen.size(1) + 2) * plan.block_size == qkv.size(1),
              "[block_sparse_attention] the plan is not of ", qkv.size(3), " heads and ", qkv.size(1), " tokens");
}

}  // namespace

namespace detail {

bool runs_block_sparse_kernel(const Tensor& qkv, const Tensor& seen) {
  const auto dtype = qkv.scalar_type();
  if ((dtype != at::kHalf && dtype != at::kBFloat16) || qkv.size(4) != kSparseHead ||
      qkv.size(1) != (seen.size(1) + 2) * kSparseBlock)
    return false;
  const char* word = std::getenv("LEVIN_BLOCK_SPARSE");
  static const std::vector<std::string> known{"torch", "kernel"};
  if (word == nullptr || word == known[1]) return true;
  if (word != known[0]) fail_unknown("block_sparse_attention", "LEVIN_BLOCK_SPARSE", word, known);
  return false;
}

}  // namespace detail

BlockPlan block_plan(const std::vector<std::vector<std::vector<int32_t>>>& seen, int64_t block_size,
                     c10::Device device) {
  LEVIN_CHECK(!seen.empty() && !seen[0].empty() && block_size > 0,
              "[block_plan] needs at least a head, three blocks and a positive block_size");
  size_t slots = 1;
  for (const auto& of_head : seen)
    for (const auto& row : of_head) slots = std::max(slots, row.size());
  const auto heads = static_cast<int64_t>(seen.size()), rows = static_cast<int64_t>(seen[0].size()),
             width = static_cast<int64_t>(slots), blocks = rows + 2;
  // Numbers first: a step that is simulated makes tensors without data.
  std::vector<int32_t> forth(static_cast<size_t>(heads * rows * width), -1),
      back(static_cast<size_t>(heads * (blocks + 1 + rows * width)));
  for (int64_t h = 0; h < heads; ++h) {
    const auto& of_head = seen[static_cast<size_t>(h)];
    LEVIN_CHECK(static_cast<int64_t>(of_head.size()) == rows, "[block_plan] all heads must have ", rows, " blocks");
    auto* slot = forth.data() + h * rows * width;
    std::vector<std::vector<int32_t>> readers(static_cast<size_t>(blocks));
    for (int64_t i = 0; i < rows; ++i, slot += width) {
      const auto& row = of_head[static_cast<size_t>(i)];
      LEVIN_CHECK(!row.empty(), "[block_plan] block ", i + 1, " sees nothing");
      for (const auto key : row) {
        LEVIN_CHECK(key >= 0 && key < blocks, "[block_plan] there is no block ", key, " of ", blocks);
        readers[static_cast<size_t>(key)].push_back(static_cast<int32_t>(i + 1));
      }
      std::copy(row.begin(), row.end(), slot);
    }
    auto* place = back.data() + h * (blocks + 1 + rows * width);
    auto* reader = place + blocks + 1;
    for (const auto& list : readers) {
      place[1] = place[0] + static_cast<int32_t>(list.size());
      ++place;
      reader = std::copy(list.begin(), list.end(), reader);
    }
  }
  const auto on_device = [&](std::vector<int32_t>& numbers, std::vector<int64_t> sizes) {
    const auto options = at::TensorOptions(at::kInt);
    if (device.is_meta()) return at::empty(sizes, options.device(device));
    return at::from_blob(numbers.data(), sizes, options).to(device, at::kInt, /*non_blocking=*/false, /*copy=*/true);
  };
  return {block_size, on_device(forth, {heads, rows, width}), on_device(back, {heads, blocks + 1 + rows * width})};
}

Tensor block_sparse_attention(const Tensor& given, const Tensor& mask, const BlockPlan& plan) {
  check_block_sparse(given, mask, plan);
  const auto qkv = (given.scalar_type() == at::kDouble ? given : given.to(product_dtype(given))).contiguous();
  if (qkv.numel() == 0) return qkv.select(2, 2).flatten(2);
  const auto tokens = mask.defined() ? MaybeTensor(mask.ne(0)) : std::nullopt;
  return BlockSparseFunction::apply(qkv, tokens, plan.seen, plan.seen_by);
}

}  // namespace levin::kernels
