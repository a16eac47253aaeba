#include <algorithm>
#include <cstring>

#include "levin/core/error.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/jpeg_codec.h"
#include "levin/io/images/jpeg_error.h"

namespace levin::detail {
namespace {

// A file of few bytes can ask for many scans over many pixels; no encoder writes more than a few dozen.
constexpr int kMostJpegScans = 100;
constexpr int kJpegRowsAtOnce = 16;

enum class JpegStop { kLibrary, kTruncated, kScans, kDiffers };

// Everything that libjpeg sees of one decoding. Plain data: the frames that libjpeg may jump over hold nothing else.
struct JpegDecoding {
  JpegErrors errors;  // first: see quiet_jpeg_errors
  jpeg_decompress_struct codec;
  jpeg_source_mgr source;
  jpeg_progress_mgr progress;
  const CodecRequest* request;
  uint8_t* out;
  const ImageInfo* info;
  bool ended;       // the file had no more bytes to give
  bool many_scans;  // the whole file is read before the first row
  bool started;     // rows have begun to come
  JpegStop stop;
};

const JOCTET kEndOfImage[2] = {0xff, JPEG_EOI};

JpegDecoding& decoding_of(j_common_ptr codec) {
  return *static_cast<JpegDecoding*>(codec->client_data);
}

[[noreturn]] void stop_jpeg(JpegDecoding& decoding, JpegStop stop) {
  decoding.stop = stop;
  std::longjmp(decoding.errors.place, 1);
}

// The decoder reads ahead, so the end of the file alone says nothing: it is given an end of image, and complains if
// that comes too early.
boolean fill_jpeg_input(j_decompress_ptr codec) {
  decoding_of(reinterpret_cast<j_common_ptr>(codec)).ended = true;
  codec->src->next_input_byte = kEndOfImage;
  codec->src->bytes_in_buffer = sizeof kEndOfImage;
  return TRUE;
}

void skip_jpeg_input(j_decompress_ptr codec, long count) {
  if (count <= 0) return;
  auto* source = codec->src;
  if (static_cast<size_t>(count) > source->bytes_in_buffer) {
    fill_jpeg_input(codec);
    return;
  }
  source->next_input_byte += count;
  source->bytes_in_buffer -= static_cast<size_t>(count);
}

void no_jpeg_work(j_decompress_ptr) {}

void watch_jpeg_messages(j_common_ptr codec, int level) {
  if (level >= 0) return;  // not even a warning
  ++codec->err->num_warnings;
  auto& decoding = decoding_of(codec);
  // Whatever it is about (the numbers of messages differ between builds of the library): after the end of the file,
  // data are missing.
  if (decoding.ended && !decoding.request->allow_truncated) stop_jpeg(decoding, JpegStop::kTruncated);
}

void watch_jpeg_progress(j_common_ptr codec) {
  auto& decoding = decoding_of(codec);
  if (decoding.codec.input_scan_number > kMostJpegScans) stop_jpeg(decoding, JpegStop::kScans);
}

// Pillow's: what files hold are inverted CMYK, since Adobe's do.
void put_cmyk(const JSAMPLE* from, int64_t count, int channels, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i, from += 4, out += channels) {
    const unsigned white = from[3];
    uint8_t rgb[3];
    for (int c = 0; c < 3; ++c) {
      const unsigned product = (255u - from[c]) * white + 128;
      rgb[c] = static_cast<uint8_t>(white - (((product >> 8) + product) >> 8));
    }
    if (channels == 1) {
      out[0] = luma(rgb[0], rgb[1], rgb[2]);
    } else {
      std::memcpy(out, rgb, 3);
      if (channels == 4) out[3] = 255;
    }
  }
}

void put_jpeg_row(const JpegDecoding& decoding, const JSAMPLE* from, uint8_t* out) {
  const int channels = decoding.request->channels;
  const auto count = decoding.request->region.width;
  if (decoding.codec.out_color_space == JCS_CMYK) {
    put_cmyk(from, count, channels, out);
  } else if (decoding.codec.output_components == channels) {
    std::memcpy(out, from, static_cast<size_t>(count * channels));
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] = luma(from[3 * i], from[3 * i + 1], from[3 * i + 2]);
  }
}

void choose_jpeg_colours(jpeg_decompress_struct& codec, int channels) {
  if (codec.num_components == 4) {
    codec.out_color_space = JCS_CMYK;
  } else if (channels == 4) {
    codec.out_color_space = JCS_EXT_RGBA;
  } else if (channels == 1 && codec.num_components == 1) {
    codec.out_color_space = JCS_GRAYSCALE;
  } else {
    codec.out_color_space = JCS_RGB;
  }
}

// Leaves columns out that the region does not need; gives the first one that is decoded. Colours at the edge of what is
// decoded lack a neighbour to be smoothed with, so a margin is decoded and dropped.
JDIMENSION crop_jpeg_columns(jpeg_decompress_struct& codec, const ImageRegion& region) {
  const int64_t block = codec.max_h_samp_factor * DCTSIZE;
  const auto margin = codec.progressive_mode ? 3 * block : block;  // blocks of unfinished files are smoothed as well
  const auto left = std::max<int64_t>(0, region.left - margin);
  const auto right = std::min<int64_t>(codec.output_width, region.left + region.width + margin);
  if (left < block && right == codec.output_width) return 0;
  auto first = static_cast<JDIMENSION>(left);
  auto width = static_cast<JDIMENSION>(right - left);
  jpeg_crop_scanline(&codec, &first, &width);
  return first;
}

void read_jpeg_rows(JpegDecoding& decoding) {
  auto& codec = decoding.codec;
  const auto& region = decoding.request->region;
  const auto row_bytes = region.width * decoding.request->channels;
  const auto first = crop_jpeg_columns(codec, region);
  if (region.top > 0) jpeg_skip_scanlines(&codec, static_cast<JDIMENSION>(region.top));
  const bool direct = codec.output_width == region.width && codec.output_components == decoding.request->channels &&
                      codec.out_color_space != JCS_CMYK;
  JSAMPARRAY rows = nullptr;
  if (!direct) {
    rows =
        codec.mem->alloc_sarray(reinterpret_cast<j_common_ptr>(&codec), JPOOL_IMAGE,
                                codec.output_width * static_cast<JDIMENSION>(codec.output_components), kJpegRowsAtOnce);
  }
  JSAMPROW pointers[kJpegRowsAtOnce];
  for (int64_t y = 0; y < region.height;) {
    const auto count = std::min<int64_t>(kJpegRowsAtOnce, region.height - y);
    auto* out = decoding.out + y * row_bytes;
    for (int64_t i = 0; direct && i < count; ++i) pointers[i] = out + i * row_bytes;
    const auto got = jpeg_read_scanlines(&codec, direct ? pointers : rows, static_cast<JDIMENSION>(count));
    const auto from = (region.left - first) * codec.output_components;
    for (JDIMENSION i = 0; !direct && i < got; ++i) put_jpeg_row(decoding, rows[i] + from, out + i * row_bytes);
    y += got;
  }
}

// False when it could not be done. Nothing in here may have a destructor.
bool run_decoding(JpegDecoding& decoding) {
  auto& codec = decoding.codec;
  if (setjmp(decoding.errors.place) != 0) return false;
  jpeg_create_decompress(&codec);
  codec.client_data = &decoding;
  codec.src = &decoding.source;
  codec.progress = &decoding.progress;
  jpeg_read_header(&codec, TRUE);
  if (codec.image_width != decoding.info->width || codec.image_height != decoding.info->height) {
    stop_jpeg(decoding, JpegStop::kDiffers);
  }
  decoding.many_scans = jpeg_has_multiple_scans(&codec) != FALSE;
  choose_jpeg_colours(codec, decoding.request->channels);
  codec.scale_num = 1;
  codec.scale_denom = static_cast<unsigned>(decoding.request->scale);
  codec.dct_method = JDCT_ISLOW;
  jpeg_start_decompress(&codec);
  const bool strict = !decoding.request->allow_truncated;
  if (strict && decoding.ended && decoding.many_scans) stop_jpeg(decoding, JpegStop::kTruncated);
  decoding.started = true;
  read_jpeg_rows(decoding);
  // Arithmetic decoding continues with zeros when the data end, and does not mention it.
  if (strict && decoding.ended && codec.arith_code) stop_jpeg(decoding, JpegStop::kTruncated);
  return true;
}

[[noreturn]] void fail_jpeg(const JpegDecoding& decoding) {
  const auto& codec = decoding.codec;
  // Whatever libjpeg stumbled over after the end of the file is but the end of the file.
  if (decoding.stop == JpegStop::kTruncated || (decoding.stop == JpegStop::kLibrary && decoding.ended)) {
    LEVIN_CHECK(decoding.started, "[image] the JPEG file ends within its ", decoding.many_scans ? "scans" : "head");
    fail(concat("[image] the JPEG file ends after row ", codec.output_scanline, " of ", codec.output_height));
  }
  LEVIN_CHECK(decoding.stop != JpegStop::kScans, "[image] the JPEG file has more than ", kMostJpegScans, " scans");
  LEVIN_CHECK(decoding.stop != JpegStop::kDiffers, "[image] the JPEG file is broken: it declares ",
              decoding.info->height, " x ", decoding.info->width, " pixels and ", codec.image_height, " x ",
              codec.image_width);
  fail(concat("[image] the JPEG file is broken: ", decoding.errors.line));
}

}  // namespace

void decode_jpeg(std::span<const std::byte> file, const ImageInfo& info, const CodecRequest& request, uint8_t* out) {
  LEVIN_CHECK(info.bit_depth == 8, "[image] the JPEG file has samples of ", info.bit_depth, " bits; 8 can be read");
  JpegDecoding decoding;
  decoding.codec.err = quiet_jpeg_errors(decoding.errors);
  decoding.codec.mem = nullptr;  // nothing to destroy yet
  decoding.errors.manager.emit_message = watch_jpeg_messages;
  decoding.source = {.next_input_byte = reinterpret_cast<const JOCTET*>(file.data()),
                     .bytes_in_buffer = file.size(),
                     .init_source = no_jpeg_work,
                     .fill_input_buffer = fill_jpeg_input,
                     .skip_input_data = skip_jpeg_input,
                     .resync_to_restart = jpeg_resync_to_restart,
                     .term_source = no_jpeg_work};
  decoding.progress = {.progress_monitor = watch_jpeg_progress};
  decoding.request = &request;
  decoding.info = &info;
  decoding.out = out;
  decoding.ended = false;
  decoding.many_scans = false;
  decoding.started = false;
  decoding.stop = JpegStop::kLibrary;
  // Made for each image: it takes a fifth of a microsecond, and no table of one file can serve another.
  const bool done = run_decoding(decoding);
  jpeg_destroy_decompress(&decoding.codec);
  if (!done) fail_jpeg(decoding);
}

}  // namespace levin::detail
