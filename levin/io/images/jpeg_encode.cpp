#include <cctype>
#include <cstdlib>
#include <memory>

#include "levin/core/error.h"
#include "levin/io/images/jpeg_codec.h"
#include "levin/io/images/jpeg_error.h"

namespace levin::detail {
namespace {

void fail_jpeg_quietly(j_common_ptr codec) {
  auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
  codec->err->format_message(codec, errors->line);
  for (auto& c : errors->line) {
    if (c != '\0' && !std::isprint(static_cast<unsigned char>(c))) c = ' ';
  }
  std::longjmp(errors->place, 1);
}

void ignore_jpeg_warning(j_common_ptr, int) {}
void print_no_jpeg_line(j_common_ptr) {}

struct JpegEncoding {
  JpegErrors errors;
  jpeg_compress_struct codec;
  unsigned char* file = nullptr;  // libjpeg's malloc
  unsigned long bytes = 0;
  const uint8_t* pixels = nullptr;
  int64_t height = 0;
  int64_t width = 0;
  int channels = 0;
  int quality = 0;
};

// False when libjpeg gave up. Nothing in here may have a destructor.
bool run_jpeg_encoding(JpegEncoding& encoding) {
  auto& codec = encoding.codec;
  if (setjmp(encoding.errors.place) != 0) return false;
  jpeg_create_compress(&codec);
  jpeg_mem_dest(&codec, &encoding.file, &encoding.bytes);
  codec.image_height = static_cast<JDIMENSION>(encoding.height);
  codec.image_width = static_cast<JDIMENSION>(encoding.width);
  codec.input_components = encoding.channels;
  codec.in_color_space = encoding.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, encoding.quality, TRUE);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    auto* row = const_cast<JSAMPLE*>(encoding.pixels + codec.next_scanline * encoding.width * encoding.channels);
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  return true;
}

}  // namespace

jpeg_error_mgr* quiet_jpeg_errors(JpegErrors& errors) {
  auto* manager = jpeg_std_error(&errors.manager);
  manager->error_exit = fail_jpeg_quietly;
  manager->emit_message = ignore_jpeg_warning;
  manager->output_message = print_no_jpeg_line;
  return manager;
}

std::string encode_jpeg(const uint8_t* pixels, int64_t height, int64_t width, int channels, int quality) {
  JpegEncoding encoding;
  encoding.codec.err = quiet_jpeg_errors(encoding.errors);
  encoding.codec.mem = nullptr;  // nothing to destroy yet
  encoding.pixels = pixels;
  encoding.height = height;
  encoding.width = width;
  encoding.channels = channels;
  encoding.quality = quality;
  const bool done = run_jpeg_encoding(encoding);
  jpeg_destroy_compress(&encoding.codec);
  const std::unique_ptr<unsigned char, decltype(&std::free)> file(encoding.file, &std::free);
  LEVIN_CHECK(done, "[image] libjpeg cannot write ", height, " x ", width, " pixels: ", encoding.errors.line);
  return {reinterpret_cast<const char*>(file.get()), encoding.bytes};
}

}  // namespace levin::detail
