#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "levin/io/images/codec.h"
#include "levin/io/images/image_options.h"

namespace levin::detail {

/// What stands before the pixels of a PNG file.
struct PngHead {
  int64_t width = 0;
  int64_t height = 0;
  int depth = 8;  // bits of a sample: 1, 2, 4, 8, 16
  int color = 0;  // 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA
  bool interlaced = false;
  uint8_t palette[256][4] = {};  // red, green, blue, alpha
  bool has_palette = false;
  bool has_key = false;  // one colour is transparent
  uint16_t key[3] = {};
  size_t data_at = 0;  // the first IDAT chunk

  int samples() const { return color == 0 || color == 3 ? 1 : color == 4 ? 2 : color == 2 ? 3 : 4; }
  /// As ImageInfo counts them.
  int channels() const { return color == 3 ? 3 : samples(); }
  /// Whether a sample of at most a byte stands for a colour: palettes and grey.
  bool indexed() const { return samples() == 1 && depth <= 8; }
  int bits() const { return samples() * depth; }
  /// Bytes of a row of `pixels` pixels, without the byte that names its filter.
  int64_t row_bytes(int64_t pixels) const { return (pixels * bits() + 7) / 8; }
};

bool is_png(std::span<const std::byte> file);
/// Checks everything up to the first pixel.
PngHead png_head(std::span<const std::byte> file);
/// From the eXIf chunk, wherever it stands; 1 when there is none.
int png_orientation(std::span<const std::byte> file);

/// An Error when the file is too short for its pixels, however well they are compressed.
void check_png_bytes(std::span<const std::byte> file, const PngHead& head);

/// Decodes into region.height rows of region.width * channels bytes.
void decode_png(std::span<const std::byte> file, const PngHead& head, const CodecRequest& request, uint8_t* out);

/// A PNG file of pixels [height, width, channels].
std::string encode_png(const uint8_t* pixels, int64_t height, int64_t width, int channels, int compression);

/// The rows of a PNG: undoes the filter of a row (0 to 4; `above` is the row before it, zeros for the first). `out` may
/// be `row` itself. `step` is the distance of the byte to the left: bits of a pixel / 8, at least 1.
void unfilter_png_row(int filter, const uint8_t* row, const uint8_t* above, uint8_t* out, int64_t bytes, int step);
/// What each sample of an indexed image stands for, in the channels asked for.
struct PngColours {
  uint8_t of[256][4];
};
PngColours png_colours(const PngHead& head, int channels);
/// Pixels first .. first + count of an unfiltered row, as bytes in the channels asked for.
void expand_png_row(const PngHead& head, const PngColours& colours, const uint8_t* row, int64_t first, int64_t count,
                    int channels, uint8_t* out);

}  // namespace levin::detail
