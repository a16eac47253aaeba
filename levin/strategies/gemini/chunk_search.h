#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace levin::detail {

/// A parameter as it is placed in chunks.
struct ChunkParam {
  std::string name;
  std::vector<int64_t> sizes;
  /// Of the shard that is kept between steps.
  c10::ScalarType dtype = c10::ScalarType::Float;
  /// Who it is: a parameter that comes twice (tied) is placed once. Null: someone of its own.
  const void* key = nullptr;
  /// Parameters of different sections do not share a chunk.
  int section = 0;

  int64_t numel() const;
  /// Elements that it takes when its rows are sharded over that many ranks: every rank has room for as many rows.
  int64_t padded_numel(int ranks) const;
};

struct ChunkSearchOptions {
  /// Elements from the smallest to the largest size that is tried, the least size, and the step between two.
  int64_t range = int64_t{32} << 20;
  int64_t min_chunk = int64_t{32} << 20;
  int64_t interval = 1024;
  int ranks = 1;
};

struct ChunkSize {
  /// Divisible by the number of ranks.
  int64_t elements = 0;
  /// Elements at the ends of chunks that no parameter uses.
  int64_t waste = 0;
  /// All parameters together are smaller than the least chunk: there is one, and sharding it would save nothing.
  bool keep_gathered = false;
};

/// The size of chunks that wastes least when parameters are placed one after the other. Parameters that are larger than
/// the mean by three standard deviations have chunks of their own and do not take part.
ChunkSize search_chunk_size(std::span<const ChunkParam> params, const ChunkSearchOptions& options);

/// Throws when a size that was asked for is smaller than the largest parameter that takes part.
void check_chunk_size(int64_t asked, std::span<const ChunkParam> params, int ranks);

}  // namespace levin::detail
