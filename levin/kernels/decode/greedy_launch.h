#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of greedy.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// What is known of some numbers of a row: the softmax of the logits, and the best score.
struct GreedyPart {
  float top, sum, score;
  int32_t index;
};

/// Parts of a row at most: the lanes of a warp.
constexpr int kMostGreedyParts = 32;

struct GreedyLaunch {
  const void* logits = nullptr;          // [rows, words]
  const void* scores = nullptr;          // the same pointer: logits are the scores
  NumberType type = NumberType::kFloat;  // or kHalf, kBFloat16
  int64_t logits_stride = 0, scores_stride = 0;
  int64_t rows = 0;
  int32_t words = 0;
  int32_t parts = 1, part_words = 0;  // of a row, each with a block of its own
  GreedyPart* partial = nullptr;      // [rows, parts]
  int64_t* ids = nullptr;             // [rows]
  double* found = nullptr;            // [rows, 3]
  // Of greedy_advance, where `found` is [turns, rows, 3]; else null.
  int64_t* positions = nullptr;  // [rows]
  int64_t* turn = nullptr;       // [1]
  int64_t turns = 1;
};

/// Returns a cudaError_t.
int launch_greedy(const GreedyLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
