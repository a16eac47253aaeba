#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace levin::detail {

/// What is done to the bytes of a chunk before they are stored, in that order.
struct ChunkFilters {
  enum class Filter { kShuffle, kDeflate };
  std::vector<Filter> filters;
  size_t element_bytes = 1;
};

/// Undoes the filters; bit i of `skipped` says that filter i was not used. An Error that gives only the reason when the
/// chunk does not come out with `size` bytes.
std::string decode_chunk(std::string stored, const ChunkFilters& filters, uint32_t skipped, size_t size);

/// The last decoded chunks: rows of one chunk are mostly read by several threads at about the same time.
class ChunkCache {
 public:
  using Chunk = std::shared_ptr<const std::string>;
  Chunk get(const void* column, size_t chunk, const std::function<std::string()>& make);

 private:
  struct Entry {
    Chunk chunk;
    uint64_t used = 0;
  };
  std::mutex mutex_;
  std::map<std::pair<const void*, size_t>, Entry> entries_;
  uint64_t clock_ = 0;
  size_t bytes_ = 0;
};

}  // namespace levin::detail
