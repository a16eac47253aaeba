#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "levin/strategies/gemini/chunk_search.h"

namespace levin::detail {

/// Parameters that are gathered, released and reduced together.
struct PlannedChunk {
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Indices of its parameters in the order in which they lie in it, and the first element of each.
  std::vector<size_t> params;
  std::vector<int64_t> offsets;
  /// Elements it has room for, those that parameters take with their padding, and those that hold values.
  int64_t capacity = 0;
  int64_t occupied = 0;
  int64_t utilized = 0;
  /// Its one parameter is larger than a chunk.
  bool own = false;
};

struct ChunkPlan {
  /// Parameters go to no other place than their chunk; of tied ones, all names have the same.
  std::vector<int> chunk_of;
  std::vector<PlannedChunk> chunks;
  int64_t chunk_size = 0;
  int ranks = 1;

  /// "12 chunks of 33554432 elements, 96.2 % used"
  std::string describe() const;
};

/// Places parameters in chunks of `chunk_size` elements, in the order in which they come: a chunk has one dtype
/// and one section, is closed when the next parameter does not fit, and a parameter that is larger than a chunk has its
/// own.
ChunkPlan plan_chunks(std::span<const ChunkParam> params, int64_t chunk_size, int ranks);

/// The same with parameters placed in the order in which a pass used them (`used`: names, a name may come again);
/// those that it did not use come last, in their own order.
ChunkPlan plan_chunks_by_use(std::span<const ChunkParam> params, std::span<const std::string> used, int64_t chunk_size,
                             int ranks);

/// Elements of a rank's shard of the chunk that hold values and not padding; over all ranks they sum up to `utilized`.
int64_t valid_elements(const PlannedChunk& chunk, std::span<const ChunkParam> params, int ranks, int rank);

}  // namespace levin::detail
