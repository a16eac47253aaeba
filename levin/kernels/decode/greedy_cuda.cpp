#include <algorithm>
#include <limits>

#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "levin/kernels/decode/greedy_detail.h"
#include "levin/kernels/decode/greedy_launch.h"
#include "levin/kernels/fused_step/adam_detail.h"

namespace levin::kernels::detail {
namespace {

/// Numbers that a block has at least, and what parts are multiples of: whole packs of 16 bytes.
constexpr int64_t kFewestWords = 4096, kWordsOfPacks = 8;

/// Enough blocks for the device, none with too little to do.
int64_t parts_of_row(int64_t rows, int64_t words) {
  const int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  return std::clamp(std::min(processors / rows, words / kFewestWords), int64_t{1}, int64_t{kMostGreedyParts});
}

bool has_kernel(const Tensor& logits, const Tensor& scores) {
  const auto dtype = logits.scalar_type();
  const auto rows = logits.size(0), words = logits.size(1);
  // Places in a row fit into 32 bits.
  return (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) && logits.stride(1) == 1 &&
         scores.stride(1) == 1 && words <= (int64_t{1} << 30) && rows > 0 &&
         rows <= std::numeric_limits<int32_t>::max() / kMostGreedyParts;
}

/// `launch` has the places of what is found.
void run_kernels(const Tensor& logits, const Tensor& scores, GreedyLaunch launch) {
  const c10::cuda::CUDAGuard guard(logits.device());
  const auto rows = logits.size(0), words = logits.size(1), parts = parts_of_row(rows, words);
  const auto partial =
      at::empty({rows * parts * static_cast<int64_t>(sizeof(GreedyPart))}, logits.options().dtype(at::kByte));
  launch.logits = logits.const_data_ptr(), launch.scores = scores.const_data_ptr();
  launch.type = number_type("greedy_tokens", logits.scalar_type());
  launch.logits_stride = logits.stride(0), launch.scores_stride = scores.stride(0);
  launch.rows = rows, launch.words = static_cast<int32_t>(words);
  launch.parts = static_cast<int32_t>(parts);
  const auto each = (words + parts - 1) / parts;
  launch.part_words = static_cast<int32_t>((each + kWordsOfPacks - 1) / kWordsOfPacks * kWordsOfPacks);
  launch.partial = static_cast<GreedyPart*>(partial.mutable_data_ptr());
  auto* stream = c10::cuda::getCurrentCUDAStream(logits.device().index()).stream();
  C10_CUDA_CHECK(static_cast<cudaError_t>(launch_greedy(launch, stream)));
}

std::tuple<Tensor, Tensor> greedy_cuda(const Tensor& logits, const Tensor& scores) {
  if (!has_kernel(logits, scores)) return greedy_by_aten(logits, scores);
  auto ids = at::empty({logits.size(0)}, logits.options().dtype(at::kLong));
  auto found = at::empty({logits.size(0), 3}, logits.options().dtype(at::kDouble));
  GreedyLaunch launch;
  launch.ids = ids.mutable_data_ptr<int64_t>(), launch.found = found.mutable_data_ptr<double>();
  run_kernels(logits, scores, launch);
  return {ids, found};
}

void advance_cuda(const Tensor& logits, const Tensor& ids, const Tensor& positions, const Tensor& found,
                  const Tensor& turn) {
  if (!has_kernel(logits, logits)) return advance_by_aten(logits, ids, positions, found, turn);
  GreedyLaunch launch;
  launch.ids = ids.mutable_data_ptr<int64_t>(), launch.found = found.mutable_data_ptr<double>();
  launch.positions = positions.mutable_data_ptr<int64_t>();
  launch.turn = turn.mutable_data_ptr<int64_t>(), launch.turns = found.size(0);
  run_kernels(logits, logits, launch);
}

}  // namespace

void register_greedy_cuda(torch::Library& library) {
  library.impl("greedy_tokens", greedy_cuda);
  library.impl("greedy_advance", advance_cuda);
}

}  // namespace levin::kernels::detail
