#include <memory>

#include <libdeflate.h>

#include "levin/io/images/inflate.h"

namespace levin::detail {

bool inflate_whole(std::span<const std::byte> stream, std::span<uint8_t> out) {
  // Kept by the thread: its tables are larger than most images.
  thread_local const std::unique_ptr<libdeflate_decompressor, decltype(&libdeflate_free_decompressor)> decompressor(
      libdeflate_alloc_decompressor(), &libdeflate_free_decompressor);
  return decompressor != nullptr && libdeflate_zlib_decompress(decompressor.get(), stream.data(), stream.size(),
                                                               out.data(), out.size(), nullptr) == LIBDEFLATE_SUCCESS;
}

}  // namespace levin::detail
