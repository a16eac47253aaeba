#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include <zlib.h>

#include "levin/core/error.h"
#include "levin/io/images/inflate.h"
#include "levin/io/images/png_chunks.h"
#include "levin/io/images/png_codec.h"

namespace levin::detail {
namespace {

// No zlib stream grows by more than this factor, so a file of few bytes cannot hold many pixels.
constexpr int64_t kMostInflated = 1032;
// Filtered rows up to this size are inflated in one go; larger images in blocks, so that they stay in the cache.
constexpr int64_t kPngWhole = int64_t{4} << 20;
constexpr int64_t kPngBlock = int64_t{256} << 10;

// Memory that a thread keeps for the next image, as long as it is not large.
class PngScratch {
 public:
  uint8_t* take(size_t bytes) {
    if (bytes > size_) {
      memory_ = std::make_unique_for_overwrite<uint8_t[]>(bytes);
      size_ = bytes;
    }
    return memory_.get();
  }
  void shrink() {
    if (size_ > kPngWhole + kPngBlock) {
      memory_.reset();
      size_ = 0;
    }
  }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t size_ = 0;
};

struct PngMemory {
  PngScratch filtered;  // rows as they come out of the stream
  PngScratch stream;    // IDAT chunks side by side
  PngScratch above;     // the last row of the block before
  PngScratch pixels;    // a row of an interlaced pass
};

struct PngMemoryUse {
  PngMemory& memory;
  ~PngMemoryUse() {
    for (auto* scratch : {&memory.filtered, &memory.stream, &memory.above, &memory.pixels}) scratch->shrink();
  }
};

// The zlib stream that the IDAT chunks are together, piece by piece.
class PngPieces {
 public:
  PngPieces(std::span<const std::byte> file, size_t at) : file_(file), at_(at) {}

  // Empty when there are no more.
  std::span<const std::byte> next() {
    while (true) {
      const auto chunk = png_chunk(file_, at_);
      if (chunk.type != "IDAT") return {};
      at_ = chunk.next;
      if (!chunk.data.empty()) return chunk.data;
    }
  }
  // All of them side by side.
  std::span<const std::byte> all(PngScratch& scratch) {
    const auto first = next();
    const auto second_at = at_;
    size_t bytes = first.size();
    for (auto piece = next(); !piece.empty(); piece = next()) bytes += piece.size();
    if (bytes == first.size()) return first;
    auto* const begin = reinterpret_cast<std::byte*>(scratch.take(bytes));
    auto* out = std::copy(first.begin(), first.end(), begin);
    at_ = second_at;
    for (auto piece = next(); !piece.empty(); piece = next()) out = std::copy(piece.begin(), piece.end(), out);
    return {begin, bytes};
  }

 private:
  std::span<const std::byte> file_;
  size_t at_;
};

// Inflates as much as is asked for at a time.
class PngInflater {
 public:
  explicit PngInflater(PngPieces pieces) : pieces_(pieces) {
    LEVIN_CHECK(inflateInit(&stream_) == Z_OK, "[image] zlib cannot start: there is no memory");
  }
  ~PngInflater() { inflateEnd(&stream_); }
  PngInflater(const PngInflater&) = delete;
  PngInflater& operator=(const PngInflater&) = delete;

  // How many bytes came out; fewer than `count` when the stream ended or broke.
  int64_t read(uint8_t* out, int64_t count) {
    stream_.next_out = out;
    stream_.avail_out = static_cast<uInt>(count);  // a block is a row at least, and rows are smaller than 2 GB
    while (stream_.avail_out > 0 && status_ == Z_OK) advance();
    return count - stream_.avail_out;
  }
  // After the last row: the checksum that follows the data, where it is there.
  bool checksum_fits() {
    uint8_t beyond[64];
    while (status_ == Z_OK) {
      stream_.next_out = beyond;
      stream_.avail_out = sizeof beyond;
      advance();
      if (stream_.avail_out == 0) return true;  // more data than pixels: harmless
    }
    return !broken();
  }
  bool broken() const { return status_ != Z_OK && status_ != Z_STREAM_END && status_ != Z_BUF_ERROR; }
  const char* reason() const { return stream_.msg != nullptr ? stream_.msg : zError(status_); }

 private:
  void advance() {
    if (stream_.avail_in == 0) {
      if (rest_.empty()) rest_ = pieces_.next();
      if (rest_.empty()) {
        status_ = Z_BUF_ERROR;  // the file ends
        return;
      }
      const auto count = std::min<size_t>(rest_.size(), std::numeric_limits<uInt>::max());
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
      stream_.avail_in = static_cast<uInt>(count);
      rest_ = rest_.subspan(count);
    }
    status_ = inflate(&stream_, Z_NO_FLUSH);
    if (status_ == Z_BUF_ERROR) status_ = Z_OK;  // wants more of either side, which the next round brings
  }

  PngPieces pieces_;
  std::span<const std::byte> rest_;
  z_stream stream_ = {};
  int status_ = Z_OK;
};

struct PngPass {
  int64_t x = 0, y = 0, dx = 1, dy = 1;  // which pixels
  int64_t width = 0, height = 0;         // how many
};

// The whole image, or the seven interlaced images, without those that have no pixels.
std::vector<PngPass> png_passes(const PngHead& head) {
  if (!head.interlaced) return {{.width = head.width, .height = head.height}};
  constexpr int kPasses[7][4] = {{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4},
                                 {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}};
  std::vector<PngPass> passes;
  for (const auto& [x, y, dx, dy] : kPasses) {
    PngPass pass{.x = x, .y = y, .dx = dx, .dy = dy};
    pass.width = (head.width - x + dx - 1) / dx;
    pass.height = (head.height - y + dy - 1) / dy;
    if (pass.width > 0 && pass.height > 0) passes.push_back(pass);
  }
  return passes;
}

// What the stream must hold; at most 2^31 rows of 2^34 bytes.
int64_t filtered_bytes(const PngHead& head, const std::vector<PngPass>& passes) {
  int64_t total = 0;
  for (const auto& pass : passes) total += pass.height * (head.row_bytes(pass.width) + 1);
  return total;
}

// Puts unfiltered rows where they belong.
class PngSink {
 public:
  PngSink(const PngHead& head, const CodecRequest& request, uint8_t* out, PngScratch& scratch)
      : head_(head),
        request_(request),
        region_(request.region),
        colours_(png_colours(head, request.channels)),
        out_(out) {
    if (head.interlaced)
      pixels_ = scratch.take(static_cast<size_t>(head.width) * static_cast<size_t>(request.channels));
  }

  // Where row y may be unfiltered to directly; null when its pixels need another form.
  uint8_t* direct(int64_t y) const {
    const bool same = !head_.interlaced && head_.depth == 8 && head_.color != 3 && head_.samples() == request_.channels;
    return same && region_.width == head_.width && wants(y) ? row(y) : nullptr;
  }
  void put(const PngPass& pass, int64_t pass_y, const uint8_t* raw) {
    const auto y = pass.y + pass_y * pass.dy;
    if (!wants(y)) return;
    if (!head_.interlaced) {
      expand_png_row(head_, colours_, raw, region_.left, region_.width, request_.channels, row(y));
      return;
    }
    expand_png_row(head_, colours_, raw, 0, pass.width, request_.channels, pixels_);
    const size_t channels = static_cast<size_t>(request_.channels);
    for (int64_t i = 0, x = pass.x; i < pass.width; ++i, x += pass.dx) {
      if (x < region_.left || x >= region_.left + region_.width) continue;
      std::memcpy(row(y) + (x - region_.left) * request_.channels, pixels_ + i * request_.channels, channels);
    }
  }

 private:
  bool wants(int64_t y) const { return y >= region_.top && y < region_.top + region_.height; }
  uint8_t* row(int64_t y) const { return out_ + (y - region_.top) * region_.width * request_.channels; }

  const PngHead& head_;
  const CodecRequest& request_;
  const ImageRegion& region_;
  PngColours colours_;
  uint8_t* out_;
  uint8_t* pixels_ = nullptr;
};

// Unfilters row after row of a pass, whatever blocks they come in.
class PngRows {
 public:
  PngRows(const PngHead& head, const PngPass& pass, PngSink& sink, PngScratch& scratch)
      : pass_(pass), sink_(sink), bytes_(head.row_bytes(pass.width)), step_(std::max(1, head.bits() / 8)) {
    kept_ = scratch.take(static_cast<size_t>(bytes_));
    std::memset(kept_, 0, static_cast<size_t>(bytes_));
    above_ = kept_;
  }

  // `count` rows, each with the byte that names its filter before it. Overwrites them.
  void put(uint8_t* filtered, int64_t count) {
    for (int64_t i = 0; i < count; ++i, filtered += bytes_ + 1, ++y_) {
      const int filter = filtered[0];
      LEVIN_CHECK(filter <= 4, "[image] the PNG file's row ", pass_.y + y_ * pass_.dy, " has filter ", filter,
                  "; known are 0 to 4");
      if (auto* direct = sink_.direct(y_)) {
        unfilter_png_row(filter, filtered + 1, above_, direct, bytes_, step_);
        above_ = direct;
      } else {
        unfilter_png_row(filter, filtered + 1, above_, filtered + 1, bytes_, step_);
        above_ = filtered + 1;
        sink_.put(pass_, y_, above_);
      }
    }
    if (count > 0 && sink_.direct(y_ - 1) == nullptr) {  // the block is about to be overwritten
      std::memcpy(kept_, above_, static_cast<size_t>(bytes_));
      above_ = kept_;
    }
  }

 private:
  const PngPass& pass_;
  PngSink& sink_;
  int64_t bytes_;
  int step_;
  int64_t y_ = 0;
  uint8_t* kept_;
  const uint8_t* above_;
};

// True when the data came out whole; rows from `last` on are not needed.
bool decode_png_in_one_go(const PngHead& head, const std::vector<PngPass>& passes, int64_t last, int64_t total,
                          PngPieces pieces, PngSink& sink, PngMemory& memory) {
  auto* filtered = memory.filtered.take(static_cast<size_t>(total));
  if (!inflate_whole(pieces.all(memory.stream), {filtered, static_cast<size_t>(total)})) return false;
  for (const auto& pass : passes) {
    PngRows rows(head, pass, sink, memory.above);
    rows.put(filtered, head.interlaced ? pass.height : std::min(pass.height, last));
    filtered += pass.height * (head.row_bytes(pass.width) + 1);
  }
  return true;
}

void decode_png_in_blocks(const PngHead& head, const std::vector<PngPass>& passes, const CodecRequest& request,
                          PngPieces pieces, PngSink& sink, PngMemory& memory) {
  PngInflater inflater(pieces);
  const auto last = request.region.top + request.region.height;
  for (const auto& pass : passes) {
    PngRows rows(head, pass, sink, memory.above);
    const auto bytes = head.row_bytes(pass.width) + 1;
    const auto at_once = std::max<int64_t>(1, kPngBlock / bytes);
    const auto height = head.interlaced ? pass.height : std::min(pass.height, last);
    auto* filtered = memory.filtered.take(static_cast<size_t>(std::min(at_once, height) * bytes));
    for (int64_t y = 0; y < height;) {
      const auto count = std::min(at_once, height - y);
      const auto got = inflater.read(filtered, count * bytes) / bytes;
      rows.put(filtered, got);
      y += got;
      if (got == count) continue;
      if (request.allow_truncated) return;
      LEVIN_CHECK(!inflater.broken(), "[image] the PNG file's data are broken after row ", pass.y + y * pass.dy, " of ",
                  head.height, ": ", inflater.reason());
      LEVIN_CHECK(!head.interlaced, "[image] the PNG file ends within its interlaced rows");
      LEVIN_CHECK(false, "[image] the PNG file ends after row ", y, " of ", head.height);
    }
  }
  if (last < head.height || request.allow_truncated) return;
  LEVIN_CHECK(inflater.checksum_fits(), "[image] the PNG file's data are broken: ", inflater.reason());
}

}  // namespace

void check_png_bytes(std::span<const std::byte> file, const PngHead& head) {
  LEVIN_CHECK(
      filtered_bytes(head, png_passes(head)) / kMostInflated <= static_cast<int64_t>(file.size() - head.data_at),
      "[image] the PNG file is cut off: ", file.size(), " bytes cannot hold ", head.height, " x ", head.width,
      " pixels");
}

void decode_png(std::span<const std::byte> file, const PngHead& head, const CodecRequest& request, uint8_t* out) {
  LEVIN_CHECK(head.row_bytes(head.width) < std::numeric_limits<int32_t>::max(),
              "[image] the PNG file's rows are too wide: ", head.width, " pixels");
  const auto passes = png_passes(head);
  const auto total = filtered_bytes(head, passes);
  const auto& region = request.region;
  if (request.allow_truncated) {
    std::memset(out, kMissingPixel, static_cast<size_t>(region.height * region.width * request.channels));
  } else {
    check_png_bytes(file, head);
  }
  thread_local PngMemory memory;
  const PngMemoryUse use{memory};
  PngSink sink(head, request, out, memory.pixels);
  const PngPieces pieces(file, head.data_at);
  // A stop before the end beats the faster way through the whole when much is left out.
  const auto last = region.top + region.height;
  const bool most = head.interlaced || 4 * last >= 3 * head.height;
  if (most && total <= kPngWhole && decode_png_in_one_go(head, passes, last, total, pieces, sink, memory)) return;
  decode_png_in_blocks(head, passes, request, pieces, sink, memory);
}

}  // namespace levin::detail
