#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace levin::detail {

/// What a decoder other than libjpeg must know before it takes a file.
struct JpegHead {
  /// The marker of the frame: 0xc0 (baseline), 0xc1 (extended), 0xc2 (progressive), or another.
  int frame = 0;
  int bit_depth = 8;
  int64_t height = 0;
  int64_t width = 0;
  int components = 0;
  /// Sampling factors of each component.
  int across[4] = {};
  int down[4] = {};
  /// Components are red, green and blue, as libjpeg tells them apart from luma and chroma.
  bool is_rgb = false;
  /// All components are in the first scan.
  bool is_interleaved = false;
  /// The end-of-image marker is there, so the file was not cut off.
  bool is_whole = false;
};

/// Nothing when the head is not in order; it never throws (jpeg_info has the Error).
std::optional<JpegHead> jpeg_head(std::span<const std::byte> file);

}  // namespace levin::detail
