#include "levin/io/png_codec.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include <zlib.h>

#include "levin/core/error.h"
#include "levin/io/exif.h"
#include "levin/io/inflate.h"

namespace levin::detail {
namespace {

constexpr unsigned char kPngSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
// No zlib stream grows by more than this factor, so a file of few bytes cannot hold many pixels.
constexpr int64_t kMostInflated = 1032;
// Filtered rows up to this size are inflated in one go; larger images in blocks, so that they stay in the cache.
constexpr int64_t kPngWhole = int64_t{4} << 20;
constexpr int64_t kPngBlock = int64_t{256} << 10;

uint32_t big_endian(const std::byte* at) {
  return std::to_integer<uint32_t>(at[0]) << 24 | std::to_integer<uint32_t>(at[1]) << 16 |
         std::to_integer<uint32_t>(at[2]) << 8 | std::to_integer<uint32_t>(at[3]);
}

struct PngChunk {
  std::string_view type;
  std::span<const std::byte> data;
  bool whole = false;  // the file does not end within it
  size_t next = 0;     // where the next one begins
};

// The chunk that begins at `at`; its type is empty when the file ends before it.
PngChunk png_chunk(std::span<const std::byte> file, size_t at) {
  if (at > file.size() || file.size() - at < 8) return {};
  const size_t length = big_endian(file.data() + at);
  PngChunk chunk;
  chunk.type = std::string_view(reinterpret_cast<const char*>(file.data()) + at + 4, 4);
  const auto left = file.size() - at - 8;
  chunk.data = file.subspan(at + 8, std::min(length, left));
  chunk.whole = length <= left && left - length >= 4;
  chunk.next = at + 8 + std::min(length + 4, left);
  return chunk;
}

bool checksum_fits(const PngChunk& chunk) {
  const auto* from = reinterpret_cast<const Bytef*>(chunk.type.data());
  return crc32_z(0, from, 4 + chunk.data.size()) == big_endian(chunk.data.data() + chunk.data.size());
}

bool is_type(std::string_view type) {
  return std::all_of(type.begin(), type.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

void read_header(const PngChunk& chunk, PngHead& head) {
  LEVIN_CHECK(chunk.data.size() == 13, "[image] the PNG file's header has ", chunk.data.size(),
              " bytes in place of 13");
  const auto byte = [&](size_t i) { return std::to_integer<int>(chunk.data[i]); };
  head.width = big_endian(chunk.data.data());
  head.height = big_endian(chunk.data.data() + 4);
  head.depth = byte(8);
  head.color = byte(9);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  LEVIN_CHECK(head.width > 0 && head.height > 0 && head.width <= kMost && head.height <= kMost,
              "[image] the PNG file declares ", head.height, " x ", head.width, " pixels");
  const int depth = head.depth;
  const bool usual = depth == 8 || depth == 16;
  const bool narrow = depth == 1 || depth == 2 || depth == 4;
  const bool fits = head.color == 0   ? usual || narrow
                    : head.color == 3 ? narrow || depth == 8
                                      : usual && (head.color == 2 || head.color == 4 || head.color == 6);
  LEVIN_CHECK(fits, "[image] the PNG file declares colour type ", head.color, " with ", depth,
              " bits, which no PNG has");
  LEVIN_CHECK(byte(10) == 0 && byte(11) == 0 && byte(12) <= 1, "[image] the PNG file declares compression ", byte(10),
              ", filters ", byte(11), " and interlacing ", byte(12), "; known are 0, 0 and 0 or 1");
  head.interlaced = byte(12) == 1;
}

void read_palette(const PngChunk& chunk, PngHead& head) {
  if (head.color != 3) return;  // a suggestion for old displays
  const auto count = chunk.data.size() / 3;
  LEVIN_CHECK(chunk.data.size() % 3 == 0 && count >= 1 && count <= 256, "[image] the PNG file's palette has ",
              chunk.data.size(), " bytes; it takes 3 for each of 1 to 256 colours");
  for (size_t i = 0; i < count; ++i) std::memcpy(head.palette[i], chunk.data.data() + 3 * i, 3);
  head.has_palette = true;
}

void read_transparency(const PngChunk& chunk, PngHead& head) {
  if (head.color == 3) {
    const auto count = std::min<size_t>(chunk.data.size(), 256);
    for (size_t i = 0; i < count; ++i) head.palette[i][3] = std::to_integer<uint8_t>(chunk.data[i]);
  } else if (head.color == 0 || head.color == 2) {
    const size_t samples = head.color == 0 ? 1 : 3;
    LEVIN_CHECK(chunk.data.size() >= 2 * samples, "[image] the PNG file's transparent colour has ", chunk.data.size(),
                " bytes in place of ", 2 * samples);
    const auto byte = [&](size_t i) { return std::to_integer<unsigned>(chunk.data[i]); };
    const unsigned mask = (1u << head.depth) - 1;  // the other bits mean nothing
    for (size_t i = 0; i < samples; ++i)
      head.key[i] = static_cast<uint16_t>((byte(2 * i) << 8 | byte(2 * i + 1)) & mask);
    head.has_key = true;
  }
}

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
    stream_.avail_out = static_cast<uInt>(count);  // blocks are smaller than 4 GB
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
    if (!same || region_.width != head_.width || y < region_.top) return nullptr;
    return row(y);
  }
  void put(const PngPass& pass, int64_t pass_y, const uint8_t* raw) {
    const auto y = pass.y + pass_y * pass.dy;
    if (y < region_.top || y >= region_.top + region_.height) return;
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

// True when the passes came out whole, and the rest of the image need not be looked at.
bool decode_in_one_go(const PngHead& head, const std::vector<PngPass>& passes, int64_t total, PngPieces pieces,
                      PngSink& sink, PngMemory& memory) {
  auto* filtered = memory.filtered.take(static_cast<size_t>(total));
  if (!inflate_whole(pieces.all(memory.stream), {filtered, static_cast<size_t>(total)})) return false;
  for (const auto& pass : passes) {
    PngRows rows(head, pass, sink, memory.above);
    rows.put(filtered, pass.height);
    filtered += pass.height * (head.row_bytes(pass.width) + 1);
  }
  return true;
}

void decode_in_blocks(const PngHead& head, const std::vector<PngPass>& passes, const CodecRequest& request,
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

bool is_png(std::span<const std::byte> file) {
  return file.size() >= sizeof kPngSignature && std::memcmp(file.data(), kPngSignature, sizeof kPngSignature) == 0;
}

PngHead png_head(std::span<const std::byte> file) {
  LEVIN_CHECK(is_png(file), "[image] the file is no PNG");
  PngHead head;
  for (auto& entry : head.palette) entry[3] = 255;
  size_t at = sizeof kPngSignature;
  for (bool first = true;; first = false) {
    const auto chunk = png_chunk(file, at);
    LEVIN_CHECK(!chunk.type.empty(), "[image] the PNG file ends within its head, after ", file.size(), " bytes");
    LEVIN_CHECK(is_type(chunk.type), "[image] the PNG file has no chunk at byte ", at, ", where one should begin");
    LEVIN_CHECK(first == (chunk.type == "IHDR"), "[image] the PNG file ",
                first ? "does not begin with its header" : "has two headers");
    if (chunk.type == "IDAT") break;
    LEVIN_CHECK(chunk.whole, "[image] the PNG file ends within its head, after ", file.size(), " bytes");
    LEVIN_CHECK(chunk.type != "IEND", "[image] the PNG file has no pixels");
    const bool wanted = chunk.type == "IHDR" || chunk.type == "PLTE" || chunk.type == "tRNS";
    LEVIN_CHECK(wanted || (chunk.type[0] & 0x20) != 0,
                "[image] the PNG file needs an extension that is not known: ", chunk.type);
    if (wanted) {
      LEVIN_CHECK(checksum_fits(chunk), "[image] the PNG file is broken: the checksum of ", chunk.type,
                  " does not fit");
      if (first) read_header(chunk, head);
      if (chunk.type == "PLTE") read_palette(chunk, head);
      if (chunk.type == "tRNS") read_transparency(chunk, head);
    }
    at = chunk.next;
  }
  LEVIN_CHECK(head.color != 3 || head.has_palette, "[image] the PNG file has no palette, but its pixels need one");
  head.data_at = at;
  return head;
}

int png_orientation(std::span<const std::byte> file) {
  for (size_t at = sizeof kPngSignature;;) {
    const auto chunk = png_chunk(file, at);
    if (chunk.type.empty() || chunk.type == "IEND" || !chunk.whole) return 1;
    if (chunk.type == "eXIf") return exif_orientation(chunk.data);
    at = chunk.next;
  }
}

void decode_png(std::span<const std::byte> file, const PngHead& head, const CodecRequest& request, uint8_t* out) {
  const auto passes = png_passes(head);
  int64_t total = 0;  // at most 2^31 rows of 2^34 bytes
  for (const auto& pass : passes) total += pass.height * (head.row_bytes(pass.width) + 1);
  const auto& region = request.region;
  const auto bytes = static_cast<size_t>(region.height * region.width * request.channels);
  if (request.allow_truncated) {
    std::memset(out, kMissingPixel, bytes);
  } else {
    LEVIN_CHECK(total / kMostInflated <= static_cast<int64_t>(file.size() - head.data_at),
                "[image] the PNG file is cut off: ", file.size(), " bytes cannot hold ", head.height, " x ", head.width,
                " pixels");
  }
  thread_local PngMemory memory;
  const PngMemoryUse use{memory};
  PngSink sink(head, request, out, memory.pixels);
  const PngPieces pieces(file, head.data_at);
  // A stop before the end beats the faster way through the whole when much is left out.
  const bool most = head.interlaced || 4 * (region.top + region.height) >= 3 * head.height;
  if (most && total <= kPngWhole && decode_in_one_go(head, passes, total, pieces, sink, memory)) return;
  decode_in_blocks(head, passes, request, pieces, sink, memory);
}

}  // namespace levin::detail
