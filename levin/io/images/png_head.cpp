#include <algorithm>
#include <cstring>
#include <limits>

#include <zlib.h>

#include "levin/core/error.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/png_chunks.h"
#include "levin/io/images/png_codec.h"

namespace levin::detail {
namespace {

constexpr unsigned char kPngSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

uint32_t png_number(const std::byte* at) {
  return std::to_integer<uint32_t>(at[0]) << 24 | std::to_integer<uint32_t>(at[1]) << 16 |
         std::to_integer<uint32_t>(at[2]) << 8 | std::to_integer<uint32_t>(at[3]);
}

bool png_checksum_fits(const PngChunk& chunk) {
  const auto* from = reinterpret_cast<const Bytef*>(chunk.type.data());
  return crc32_z(0, from, 4 + chunk.data.size()) == png_number(chunk.data.data() + chunk.data.size());
}

bool is_png_type(std::string_view type) {
  return std::all_of(type.begin(), type.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

void read_png_header(const PngChunk& chunk, PngHead& head) {
  LEVIN_CHECK(chunk.data.size() == 13, "[image] the PNG file's header has ", chunk.data.size(),
              " bytes in place of 13");
  const auto byte = [&](size_t i) { return std::to_integer<int>(chunk.data[i]); };
  head.width = png_number(chunk.data.data());
  head.height = png_number(chunk.data.data() + 4);
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

void read_png_palette(const PngChunk& chunk, PngHead& head) {
  if (head.color != 3) return;  // a suggestion for old displays
  const auto count = chunk.data.size() / 3;
  LEVIN_CHECK(chunk.data.size() % 3 == 0 && count >= 1 && count <= 256, "[image] the PNG file's palette has ",
              chunk.data.size(), " bytes; it takes 3 for each of 1 to 256 colours");
  for (size_t i = 0; i < count; ++i) std::memcpy(head.palette[i], chunk.data.data() + 3 * i, 3);
  head.has_palette = true;
}

void read_png_transparency(const PngChunk& chunk, PngHead& head) {
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

}  // namespace

PngChunk png_chunk(std::span<const std::byte> file, size_t at) {
  if (at > file.size() || file.size() - at < 8) return {};
  const size_t length = png_number(file.data() + at);
  PngChunk chunk;
  chunk.type = std::string_view(reinterpret_cast<const char*>(file.data()) + at + 4, 4);
  const auto left = file.size() - at - 8;
  chunk.data = file.subspan(at + 8, std::min(length, left));
  chunk.whole = length <= left && left - length >= 4;
  chunk.next = at + 8 + std::min(length + 4, left);
  return chunk;
}

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
    LEVIN_CHECK(is_png_type(chunk.type), "[image] the PNG file has no chunk at byte ", at, ", where one should begin");
    LEVIN_CHECK(first == (chunk.type == "IHDR"), "[image] the PNG file ",
                first ? "does not begin with its header" : "has two headers");
    if (chunk.type == "IDAT") break;
    LEVIN_CHECK(chunk.whole, "[image] the PNG file ends within its head, after ", file.size(), " bytes");
    LEVIN_CHECK(chunk.type != "IEND", "[image] the PNG file has no pixels");
    const bool wanted = chunk.type == "IHDR" || chunk.type == "PLTE" || chunk.type == "tRNS";
    LEVIN_CHECK(wanted || (chunk.type[0] & 0x20) != 0,
                "[image] the PNG file needs an extension that is not known: ", chunk.type);
    if (wanted) {
      LEVIN_CHECK(png_checksum_fits(chunk), "[image] the PNG file is broken: the checksum of ", chunk.type,
                  " does not fit");
      if (first) read_png_header(chunk, head);
      if (chunk.type == "PLTE") read_png_palette(chunk, head);
      if (chunk.type == "tRNS") read_png_transparency(chunk, head);
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

}  // namespace levin::detail
