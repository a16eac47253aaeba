#include <memory>

#include <zstd.h>

#include "levin/core/error.h"
#include "levin/io/decompress.h"

namespace levin::detail {

bool has_zstd() {
  return true;
}

void decompress_zstd(const FileReader& file, const EachBlock& each) {
  const auto damaged = [&](const char* what) {
    fail(concat("[records] \"", file.path().string(), "\" cannot be decompressed: ", what));
  };
  // The library keeps no more than a window, and refuses those above 128 MiB.
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream(::ZSTD_createDStream(), ::ZSTD_freeDStream);
  if (!stream || ::ZSTD_isError(::ZSTD_initDStream(stream.get()))) damaged("zstd does not start");
  BlockReader blocks(file);
  std::vector<std::byte> out(BlockReader::kBytes);
  size_t wanted = 0;  // 0: at the end of a frame; files may follow each other
  for (auto block = blocks.next(); !block.empty(); block = blocks.next()) {
    ZSTD_inBuffer in{block.data(), block.size(), 0};
    bool full = false;
    while (in.pos < in.size || full) {
      ZSTD_outBuffer to{out.data(), out.size(), 0};
      const auto before = in.pos;
      wanted = ::ZSTD_decompressStream(stream.get(), &to, &in);
      if (::ZSTD_isError(wanted)) damaged(::ZSTD_getErrorName(wanted));
      if (to.pos > 0) each(std::span(out).first(to.pos));
      full = to.pos == to.size && wanted != 0;
      if (in.pos == before && to.pos == 0) break;
    }
  }
  if (wanted != 0) damaged("it is truncated");
}

}  // namespace levin::detail
