// fuzz-sources: levin/io/images/png_*.cpp levin/io/images/exif.cpp levin/io/images/no_deflate.cpp levin/core/error.cpp
// fuzz-seeds: tests/io/fixtures/images/*.png tests/fuzz/corpus/png/*
// fuzz-libraries: -lpng -lz
//
// Besides taking any bytes: what libpng reads without a complaint has the same pixels here, and a region has those of
// the whole. Checksums are put right first, or hardly any input would come far.
#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <span>
#include <vector>

#include <png.h>
#include <zlib.h>

#include "fuzz.h"
#include "levin/io/images/png_codec.h"

namespace {

using levin::detail::CodecRequest;
using levin::detail::PngHead;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kMostPixels = 1 << 18;

void mend_checksums(Bytes& file) {
  for (size_t at = 8; at + 12 <= file.size();) {
    const size_t length =
        size_t{file[at]} << 24 | size_t{file[at + 1]} << 16 | size_t{file[at + 2]} << 8 | file[at + 3];
    if (length > file.size() - at - 12) return;
    const auto checksum = crc32_z(0, &file[at + 4], length + 4);
    for (int i = 0; i < 4; ++i)
      file[at + 8 + length + static_cast<size_t>(i)] = static_cast<uint8_t>(checksum >> (24 - 8 * i));
    at += 12 + length;
  }
}

void append_chunk(Bytes& file, const char* type, std::span<const uint8_t> data) {
  for (int shift = 24; shift >= 0; shift -= 8) file.push_back(static_cast<uint8_t>(data.size() >> shift));
  file.insert(file.end(), type, type + 4);
  file.insert(file.end(), data.begin(), data.end());
  file.insert(file.end(), 4, 0);  // mend_checksums
}

// A PNG of the kind that the first five bytes say, whose filtered rows are the rest.
Bytes png_of_rows(std::span<const uint8_t> data) {
  constexpr uint8_t kKinds[15][2] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {16, 0}, {8, 2}, {16, 2}, {1, 3},
                                     {2, 3}, {4, 3}, {8, 3}, {8, 4}, {16, 4}, {8, 6}, {16, 6}};
  const auto& kind = kKinds[data[0] % 15];
  const auto rows = data.subspan(5);
  Bytes file{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  const uint8_t head[13] = {
      0,       0, 0, static_cast<uint8_t>(1 + data[1] % 40), 0, 0, 0, static_cast<uint8_t>(1 + data[2] % 40), kind[0],
      kind[1], 0, 0, static_cast<uint8_t>(data[3] & 1)};
  append_chunk(file, "IHDR", head);
  if (kind[1] == 3) append_chunk(file, "PLTE", rows.first(std::min<size_t>(rows.size() / 3 * 3, 3u << kind[0])));
  if ((data[3] & 2) != 0 && kind[1] < 4) {
    append_chunk(file, "tRNS",
                 rows.first(std::min<size_t>(rows.size(), kind[1] == 0   ? 2
                                                          : kind[1] == 2 ? 6
                                                                         : data[4])));
  }
  Bytes packed(compressBound(rows.size()));
  uLongf size = packed.size();
  compress2(packed.data(), &size, rows.data(), rows.size(), 1);
  append_chunk(file, "IDAT", {packed.data(), size});
  append_chunk(file, "IEND", {});
  return file;
}

struct Source {
  const uint8_t* at;
  size_t left;
};

void give(png_structp codec, png_bytep out, size_t count) {
  auto* source = static_cast<Source*>(png_get_io_ptr(codec));
  if (source->left < count) png_error(codec, "end");
  std::memcpy(out, source->at, count);
  source->at += count;
  source->left -= count;
}

void give_up(png_structp codec, png_const_charp) {
  png_longjmp(codec, 1);
}

// RGBA as libpng sees it; false when it has any complaint.
bool read_by_libpng(const Bytes& file, const PngHead& head, png_bytep pixels, png_bytepp rows) {
  Source source{file.data(), file.size()};
  png_structp codec = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, give_up, give_up);
  png_infop info = png_create_info_struct(codec);
  if (setjmp(png_jmpbuf(codec)) != 0) {
    png_destroy_read_struct(&codec, &info, nullptr);
    return false;
  }
  png_set_read_fn(codec, &source, give);
  png_set_keep_unknown_chunks(codec, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_read_info(codec, info);
  png_set_expand(codec);
  png_set_strip_16(codec);
  png_set_gray_to_rgb(codec);
  png_set_add_alpha(codec, 0xff, PNG_FILLER_AFTER);
  png_set_interlace_handling(codec);
  png_read_update_info(codec, info);
  for (int64_t y = 0; y < head.height; ++y) rows[y] = pixels + y * head.width * 4;
  png_read_image(codec, rows);
  png_read_end(codec, nullptr);
  png_destroy_read_struct(&codec, &info, nullptr);
  return true;
}

void compare_with_libpng(const Bytes& file, const PngHead& head, const Bytes& rgba) {
  Bytes theirs(rgba.size());
  std::vector<png_bytep> rows(static_cast<size_t>(head.height));
  if (read_by_libpng(file, head, theirs.data(), rows.data()) && theirs != rgba) {
    levin::fuzz::complain("libpng has other pixels");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace levin;
  Bytes file = size > 5 && data[0] != 0x89 ? png_of_rows({data, size}) : Bytes(data, data + size);
  mend_checksums(file);
  const auto bytes = std::as_bytes(std::span(file));
  PngHead head;
  if (!fuzz::taken([&] { head = detail::png_head(bytes); })) return 0;
  const int turn = detail::png_orientation(bytes);
  if (turn < 1 || turn > 8) fuzz::complain("no orientation");
  if (head.width > kMostPixels || head.height > kMostPixels || head.width * head.height > kMostPixels) return 0;

  CodecRequest request{.channels = 4, .region = {0, 0, head.height, head.width}};
  Bytes whole(static_cast<size_t>(head.height * head.width * 4));
  if (!fuzz::taken([&] { detail::decode_png(bytes, head, request, whole.data()); })) {
    request.allow_truncated = true;
    fuzz::taken([&] { detail::decode_png(bytes, head, request, whole.data()); });
    return 0;
  }
  compare_with_libpng(file, head, whole);

  const auto chance = crc32(0, data, static_cast<uInt>(size));
  auto& region = request.region;
  region.top = chance % head.height;
  region.left = (chance >> 8) % head.width;
  region.height = 1 + (chance >> 16) % (head.height - region.top);
  region.width = 1 + (chance >> 24) % (head.width - region.left);
  request.channels = chance % 3 == 0 ? head.channels() : chance % 3 == 1 ? 1 : 4;
  Bytes part(static_cast<size_t>(region.height * region.width * request.channels));
  if (!fuzz::taken([&] { detail::decode_png(bytes, head, request, part.data()); }))
    fuzz::complain("a region is refused");
  for (int64_t y = 0; request.channels == 4 && y < region.height; ++y) {
    const auto* row = &whole[static_cast<size_t>(((region.top + y) * head.width + region.left) * 4)];
    if (std::memcmp(row, &part[static_cast<size_t>(y * region.width * 4)], static_cast<size_t>(region.width * 4)) !=
        0) {
      fuzz::complain("a region has other pixels");
    }
  }
  return 0;
}
