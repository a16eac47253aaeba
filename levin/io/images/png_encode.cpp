#include <cstdio>
#include <exception>

#include <png.h>

#include "levin/core/error.h"
#include "levin/io/images/png_codec.h"

namespace levin::detail {
namespace {

struct PngEncoding {
  png_structp codec = nullptr;
  png_infop info = nullptr;
  std::string* file = nullptr;
  char line[128] = {};
};

void fail_png(png_structp codec, png_const_charp message) {
  auto* encoding = static_cast<PngEncoding*>(png_get_error_ptr(codec));
  std::snprintf(encoding->line, sizeof encoding->line, "%s", message);
  png_longjmp(codec, 1);
}

void ignore_png(png_structp, png_const_charp) {}

// No exception may pass through libpng.
void append_png(png_structp codec, png_bytep data, size_t count) {
  auto* encoding = static_cast<PngEncoding*>(png_get_io_ptr(codec));
  bool stored = true;
  try {
    encoding->file->append(reinterpret_cast<const char*>(data), count);
  } catch (const std::exception&) {
    stored = false;
  }
  if (!stored) png_error(codec, "there is no memory for the file");
}

void flush_png(png_structp) {}

// False when libpng gave up. Nothing in here may have a destructor.
bool run_png_encoding(PngEncoding& encoding, const uint8_t* pixels, int64_t height, int64_t width, int channels,
                      int compression) {
  if (setjmp(png_jmpbuf(encoding.codec)) != 0) return false;
  constexpr int kColours[] = {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_GRAY_ALPHA, PNG_COLOR_TYPE_RGB,
                              PNG_COLOR_TYPE_RGB_ALPHA};
  png_set_write_fn(encoding.codec, &encoding, append_png, flush_png);
  png_set_compression_level(encoding.codec, compression);
  png_set_user_limits(encoding.codec, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_IHDR(encoding.codec, encoding.info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), 8,
               kColours[channels - 1], PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(encoding.codec, encoding.info);
  for (int64_t y = 0; y < height; ++y) png_write_row(encoding.codec, pixels + y * width * channels);
  png_write_end(encoding.codec, nullptr);
  return true;
}

}  // namespace

std::string encode_png(const uint8_t* pixels, int64_t height, int64_t width, int channels, int compression) {
  std::string file;
  PngEncoding encoding;
  encoding.file = &file;
  encoding.codec = png_create_write_struct(PNG_LIBPNG_VER_STRING, &encoding, fail_png, ignore_png);
  if (encoding.codec != nullptr) encoding.info = png_create_info_struct(encoding.codec);
  const bool done =
      encoding.info != nullptr && run_png_encoding(encoding, pixels, height, width, channels, compression);
  png_destroy_write_struct(&encoding.codec, &encoding.info);
  LEVIN_CHECK(done, "[image] libpng cannot write ", height, " x ", width,
              " pixels: ", encoding.line[0] != '\0' ? encoding.line : "there is no memory");
  return file;
}

}  // namespace levin::detail
