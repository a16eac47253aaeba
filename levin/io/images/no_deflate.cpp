#include <limits>

#include <zlib.h>

#include "levin/io/images/inflate.h"

namespace levin::detail {
namespace {

// Kept by the thread: making one takes longer than a small image.
struct WholeStream {
  WholeStream() { ready = inflateInit(&stream) == Z_OK; }
  ~WholeStream() {
    if (ready) inflateEnd(&stream);
  }
  z_stream stream = {};
  bool ready = false;
};

}  // namespace

bool inflate_whole(std::span<const std::byte> stream, std::span<uint8_t> out) {
  thread_local WholeStream whole;
  constexpr auto kMost = std::numeric_limits<uInt>::max();
  if (!whole.ready || stream.size() > kMost || out.size() > kMost || inflateReset(&whole.stream) != Z_OK) return false;
  whole.stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(stream.data()));
  whole.stream.avail_in = static_cast<uInt>(stream.size());
  whole.stream.next_out = out.data();
  whole.stream.avail_out = static_cast<uInt>(out.size());
  return inflate(&whole.stream, Z_FINISH) == Z_STREAM_END && whole.stream.avail_out == 0;
}

}  // namespace levin::detail
