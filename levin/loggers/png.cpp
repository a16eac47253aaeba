#include "levin/loggers/png.h"

#include <zlib.h>

#include "levin/core/error.h"

namespace levin::detail {
namespace {

constexpr std::string_view kSignature("\x89PNG\r\n\x1a\n", 8);
constexpr char kUpFilter = 2;

void append_big_endian(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xff);
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  append_big_endian(out, static_cast<uint32_t>(data.size()));
  const auto start = out.size();
  out += type;
  out += data;
  const auto* checked = reinterpret_cast<const Bytef*>(out.data() + start);
  append_big_endian(out, static_cast<uint32_t>(crc32_z(0, checked, out.size() - start)));
}

// Each line as its difference to the one above, which compresses well.
std::string filtered(const at::Tensor& pixels) {
  const auto height = pixels.size(0);
  const auto stride = pixels.size(1) * pixels.size(2);
  const auto* line = pixels.const_data_ptr<uint8_t>();
  std::string out;
  out.reserve(static_cast<size_t>(height * (stride + 1)));
  for (int64_t y = 0; y < height; ++y, line += stride) {
    out += kUpFilter;
    for (int64_t i = 0; i < stride; ++i) out += static_cast<char>(y == 0 ? line[i] : line[i] - line[i - stride]);
  }
  return out;
}

std::string deflated(const std::string& data) {
  auto size = compressBound(data.size());
  std::string out(size, '\0');
  const int status = compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(data.data()),
                               data.size(), Z_DEFAULT_COMPRESSION);
  LEVIN_CHECK(status == Z_OK, "[png] zlib cannot compress ", data.size(), " bytes: ", zError(status));
  out.resize(size);
  return out;
}

}  // namespace

at::Tensor to_pixels(const std::string& name, const at::Tensor& image) {
  LEVIN_CHECK(image.defined() && (image.dim() == 2 || image.dim() == 3) && image.numel() > 0, "[log_image] \"", name,
              "\" must be [C, H, W] or [H, W], and is ",
              image.defined() ? concat(image.sizes()) : "an undefined tensor");
  const auto type = image.scalar_type();
  LEVIN_CHECK(type == at::kByte || type == at::kBool || at::isFloatingType(type), "[log_image] \"", name,
              "\" must be uint8, or floating point from 0 to 1, and is ", c10::toString(type));
  auto pixels = image.dim() == 2 ? image.detach().unsqueeze(0) : image.detach();
  const auto channels = pixels.size(0);
  LEVIN_CHECK(channels == 1 || channels == 3 || channels == 4, "[log_image] \"", name,
              "\" must have 1 (gray), 3 (RGB) or 4 (RGBA) channels, and is ", image.sizes());
  if (type != at::kByte) pixels = pixels.to(at::kFloat).nan_to_num(0).mul(255).clamp(0, 255).to(at::kByte);
  return pixels.permute({1, 2, 0}).contiguous().cpu();
}

std::string encode_png(const at::Tensor& pixels) {
  const auto channels = pixels.size(2);
  std::string header;
  append_big_endian(header, static_cast<uint32_t>(pixels.size(1)));
  append_big_endian(header, static_cast<uint32_t>(pixels.size(0)));
  header += '\x08';  // bits of a sample
  header += static_cast<char>(channels == 1 ? 0 : channels == 3 ? 2 : 6);
  header += std::string(3, '\0');  // deflate, filters per line, not interlaced
  std::string out(kSignature);
  append_chunk(out, "IHDR", header);
  append_chunk(out, "IDAT", deflated(filtered(pixels)));
  append_chunk(out, "IEND", {});
  return out;
}

}  // namespace levin::detail
