#include "levin/io/records/hdf5/hdf5_chunks.h"

#include <algorithm>

#include <zlib.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr size_t kMostCachedBytes = size_t{128} << 20;
constexpr size_t kMostCachedChunks = 64;

std::string inflate_chunk(const std::string& stored, size_t size) {
  std::string out(size, '\0');
  z_stream stream{};
  LEVIN_CHECK(::inflateInit(&stream) == Z_OK, "cannot start zlib");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(stored.data()));
  stream.avail_in = static_cast<uInt>(stored.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = ::inflate(&stream, Z_FINISH);
  const size_t left = stream.avail_out;
  ::inflateEnd(&stream);
  LEVIN_CHECK(result == Z_STREAM_END && left == 0, "is damaged: it does not inflate to its ", size, " bytes");
  return out;
}

/// First bytes of all elements, then their second bytes, ...
std::string unshuffle(const std::string& stored, size_t element) {
  const size_t count = stored.size() / element;
  std::string out = stored;  // what is left over stays at the end as it is
  for (size_t byte = 0; byte < element; ++byte) {
    const char* from = stored.data() + byte * count;
    char* to = out.data() + byte;
    for (size_t i = 0; i < count; ++i) to[i * element] = from[i];
  }
  return out;
}

}  // namespace

std::string decode_chunk(std::string stored, const ChunkFilters& filters, uint32_t skipped, size_t size) {
  for (size_t i = filters.filters.size(); i-- > 0;) {
    if ((skipped >> i & 1U) != 0) continue;
    if (filters.filters[i] == ChunkFilters::Filter::kDeflate)
      stored = inflate_chunk(stored, size);
    else if (filters.element_bytes > 1)
      stored = unshuffle(stored, filters.element_bytes);
  }
  LEVIN_CHECK(stored.size() == size, "is damaged: it has ", stored.size(), " bytes, not ", size);
  return stored;
}

ChunkCache::Chunk ChunkCache::get(const void* column, size_t chunk, const std::function<std::string()>& make) {
  const std::pair key(column, chunk);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = entries_.find(key); found != entries_.end()) {
      found->second.used = ++clock_;
      return found->second.chunk;
    }
  }
  auto made = std::make_shared<const std::string>(make());
  const std::lock_guard lock(mutex_);
  auto& entry = entries_[key];
  if (!entry.chunk) {
    bytes_ += made->size();
    entry.chunk = made;
  }
  entry.used = ++clock_;
  while (entries_.size() > 1 && (entries_.size() > kMostCachedChunks || bytes_ > kMostCachedBytes)) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                         [](auto& a, auto& b) { return a.second.used < b.second.used; });
    bytes_ -= oldest->second.chunk->size();
    entries_.erase(oldest);
  }
  return made;
}

}  // namespace levin::detail
