#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

/// What the kernels of embedding.cu are told: pointers, sizes and a stream, without a header of torch.
struct CUstream_st;

namespace levin::kernels::detail {

/// Fewer ids are left to torch, whose one kernel for them needs no sort.
inline constexpr int64_t kFewIds = 3072;

/// Sorted ids come in tiles of as many.
inline constexpr int kEmbeddingTile = 32;
inline constexpr int64_t embedding_tiles(int64_t count) {
  return (count + kEmbeddingTile - 1) / kEmbeddingTile;
}

/// Ids to sort by, and their places. The one without a gradient becomes `rows`, the last.
struct EmbeddingKeys {
  const void* ids = nullptr;  // int64 or int32 [count]
  bool wide = true;           // int64
  int64_t padding = -1;
  int32_t count = 0;
  int32_t rows = 0;
  int32_t* keys = nullptr;
  int32_t* places = nullptr;
};

struct EmbeddingLaunch {
  const void* grad = nullptr;            // [count, columns]
  const int32_t* keys = nullptr;         // sorted
  const int32_t* places = nullptr;       // rows of grad, in the order of keys
  float* heads = nullptr;                // [tiles, columns]: sums of ids that have begun in a tile before
  float* tails = nullptr;                // [tiles, columns]: sums of ids that begin here and continue in the next tile
  void* out = nullptr;                   // [rows, columns]
  bool add = false;                      // to what is there; rows without ids are not touched
  NumberType type = NumberType::kFloat;  // of grad and out; or kHalf, kBFloat16
  int32_t count = 0;
  int32_t rows = 0;
  int64_t columns = 0;
};

/// out = weight[ids] + positions.
struct EmbeddingSumLaunch {
  const void* weight = nullptr;     // [rows, columns]
  const void* ids = nullptr;        // int64 or int32 [count]
  const void* positions = nullptr;  // [length, columns]; row i % length belongs to id i
  void* out = nullptr;              // [count, columns]
  bool wide = true;                 // int64
  NumberType type = NumberType::kFloat;
  int64_t count = 0;
  int64_t length = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

/// All return a cudaError_t.
int launch_embedding_keys(const EmbeddingKeys& keys, CUstream_st* stream);
int launch_embedding_sum(const EmbeddingSumLaunch& launch, CUstream_st* stream);
int launch_embedding_backward(const EmbeddingLaunch& launch, CUstream_st* stream);

}  // namespace levin::kernels::detail
