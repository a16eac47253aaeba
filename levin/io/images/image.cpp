#include "levin/io/images/image.h"

#include <algorithm>
#include <cctype>
#include <memory>

#include <ATen/ops/empty_strided.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/decode_where.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/images/jpeg_codec.h"
#include "levin/io/images/png_codec.h"
#include "levin/io/images/webp_codec.h"

namespace levin {
namespace {

using detail::OpenImage;
using Bytes = std::span<const std::byte>;

class PngImage final : public OpenImage {
 public:
  PngImage(Bytes file, bool orientation) : file_(file), head_(detail::png_head(file)) {
    info_ = {.format = "png",
             .height = head_.height,
             .width = head_.width,
             .channels = head_.channels(),
             .bit_depth = head_.depth,
             .orientation = orientation ? detail::png_orientation(file) : 1};
  }
  void check_bytes() const override { detail::check_png_bytes(file_, head_); }
  void decode(const detail::CodecRequest& request, uint8_t* out) const override {
    detail::decode_png(file_, head_, request, out);
  }

 private:
  Bytes file_;
  detail::PngHead head_;
};

class JpegImage final : public OpenImage {
 public:
  JpegImage(Bytes file, bool) : file_(file) { info_ = detail::jpeg_info(file); }
  int scale(int64_t at_least) const override { return detail::jpeg_scale(info_, at_least); }
  void decode(const detail::CodecRequest& request, uint8_t* out) const override {
    detail::decode_jpeg(file_, info_, request, out);
  }

 private:
  Bytes file_;
};

class WebpImage final : public OpenImage {
 public:
  WebpImage(Bytes file, bool orientation) : file_(file) {
    info_ = detail::webp_info(file, orientation, /*allow_truncated=*/true);
  }
  void check_bytes() const override { detail::webp_info(file_, false, /*allow_truncated=*/false); }
  void decode(const detail::CodecRequest& request, uint8_t* out) const override {
    detail::decode_webp(file_, info_, request, out);
  }

 private:
  Bytes file_;
};

template <class T>
std::unique_ptr<OpenImage> open_as(Bytes file, bool orientation) {
  return std::make_unique<T>(file, orientation);
}

std::string encode_as_png(const uint8_t* pixels, int64_t height, int64_t width, int channels,
                          const EncodeOptions& options) {
  LEVIN_CHECK(channels <= 4, "[encode_image] a PNG has 1 to 4 channels, and the pixels have ", channels);
  LEVIN_CHECK(options.compression >= 0 && options.compression <= 9,
              "[encode_image] compression must be 0 to 9, and is ", options.compression);
  return detail::encode_png(pixels, height, width, channels, options.compression);
}

std::string encode_as_jpeg(const uint8_t* pixels, int64_t height, int64_t width, int channels,
                           const EncodeOptions& options) {
  LEVIN_CHECK(channels == 1 || channels == 3, "[encode_image] a JPEG has 1 or 3 channels, and the pixels have ",
              channels);
  LEVIN_CHECK(options.quality >= 1 && options.quality <= 100, "[encode_image] quality must be 1 to 100, and is ",
              options.quality);
  return detail::encode_jpeg(pixels, height, width, channels, options.quality);
}

std::unique_ptr<OpenImage> open_image(Bytes file, bool orientation) {
  LEVIN_CHECK(!file.empty(), "[image] there are no bytes");
  const auto* codec = detail::image_codec_of(file);
  LEVIN_CHECK(codec, "[image] the bytes are neither ", detail::image_titles(" nor "));
  return codec->open(file, orientation);
}

// What is decoded, and how it becomes what was asked for.
struct ImagePlan {
  ImageShape shape;
  detail::CodecRequest request;
  int orientation = 1;
};

/// `scale` divides the sides.
ImagePlan plan_image(const ImageInfo& info, int scale, const ImageOptions& options) {
  // Sides have at most 31 bits, so the product fits.
  LEVIN_CHECK(info.height * info.width <= options.max_pixels, "[image] the ", info.format, " file declares ",
              info.height, " x ", info.width, " pixels, more than max_pixels (", options.max_pixels, ") allows");
  LEVIN_CHECK(options.at_least == 0 || !options.region, "[image] at_least and region exclude each other");
  ImagePlan plan;
  auto& request = plan.request;
  constexpr int kChannels[] = {0, 1, 3, 4};
  request.channels = options.mode == ImageMode::kUnchanged ? info.channels : kChannels[static_cast<int>(options.mode)];
  request.scale = scale;
  request.allow_truncated = options.allow_truncated;
  plan.orientation = options.apply_exif ? info.orientation : 1;
  const auto height = (info.height + request.scale - 1) / request.scale;
  const auto width = (info.width + request.scale - 1) / request.scale;
  const bool swaps = detail::swaps_sides(plan.orientation);
  ImageRegion region{.height = swaps ? width : height, .width = swaps ? height : width};
  if (options.region) {
    const auto& asked = *options.region;
    LEVIN_CHECK(asked.top >= 0 && asked.left >= 0 && asked.height > 0 && asked.width > 0 &&
                    asked.top <= region.height - asked.height && asked.left <= region.width - asked.width,
                "[image] the region of ", asked.height, " x ", asked.width, " pixels at row ", asked.top, ", column ",
                asked.left, " is not within the image, which has ", region.height, " x ", region.width);
    region = asked;
  }
  plan.shape = {.channels = request.channels, .height = region.height, .width = region.width};
  request.region = detail::stored_region(region, plan.orientation, height, width);
  return plan;
}

ImagePlan plan_image(const OpenImage& image, const ImageOptions& options) {
  LEVIN_CHECK(options.at_least >= 0, "[image] at_least must not be negative, and is ", options.at_least);
  return plan_image(image.info(), image.scale(options.at_least), options);
}

void run_image_plan(const OpenImage& image, const ImagePlan& plan, uint8_t* out) {
  if (plan.orientation == 1) {
    image.decode(plan.request, out);
    return;
  }
  const auto stored = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(plan.shape.bytes()));
  image.decode(plan.request, stored.get());
  const auto& region = plan.request.region;
  detail::turn_upright(stored.get(), region.height, region.width, plan.request.channels, plan.orientation, out);
}

/// The kinds that are written, as their names or as ends of files.
std::vector<std::string> written_kinds(bool extensions) {
  std::vector<std::string> known;
  for (const auto& codec : detail::image_codecs()) {
    if (!codec.encode) continue;
    if (!extensions) known.emplace_back(codec.name);
    for (const auto end : codec.extensions)
      if (extensions) known.push_back("." + std::string(end));
  }
  return known;
}

}  // namespace

const std::vector<detail::ImageCodec>& detail::image_codecs() {
  static const std::vector<ImageCodec> table{
      {"png", "PNG", {"png"}, is_png, open_as<PngImage>, encode_as_png},
      {"jpeg", "JPEG", {"jpg", "jpeg"}, is_jpeg, open_as<JpegImage>, encode_as_jpeg},
      {"webp", "WebP", {"webp"}, is_webp, open_as<WebpImage>, nullptr},
  };
  return table;
}

const detail::ImageCodec* detail::image_codec_of(std::span<const std::byte> file) {
  for (const auto& codec : image_codecs())
    if (codec.matches(file)) return &codec;
  return nullptr;
}

const detail::ImageCodec* detail::image_codec_by_name(std::string_view name) {
  std::string end(name.substr(std::min(name.rfind('.'), name.size())));
  if (end.empty()) return nullptr;
  std::transform(end.begin(), end.end(), end.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const auto& codec : image_codecs())
    for (const auto extension : codec.extensions)
      if (std::string_view(end).substr(1) == extension) return &codec;
  return nullptr;
}

std::string detail::image_titles(std::string_view between) {
  std::vector<std::string> titles;
  for (const auto& codec : image_codecs()) titles.emplace_back(codec.title);
  return join(titles, between);
}

std::string detail::image_extensions() {
  std::vector<std::string> ends;
  for (const auto& codec : image_codecs())
    for (const auto extension : codec.extensions) ends.push_back("." + std::string(extension));
  return join(ends);
}

ImageInfo image_info(std::span<const std::byte> file) {
  return open_image(file, true)->info();
}

ImageShape decoded_shape(const ImageInfo& info, const ImageOptions& options) {
  LEVIN_CHECK(options.at_least >= 0, "[image] at_least must not be negative, and is ", options.at_least);
  return plan_image(info, info.format == "jpeg" ? detail::jpeg_scale(info, options.at_least) : 1, options).shape;
}

Tensor detail::decode_image_where(std::span<const std::byte> file, const ImageOptions& options,
                                  const std::function<Tensor(const ImageShape&)>& make) {
  const auto image = open_image(file, options.apply_exif);
  const auto plan = plan_image(*image, options);
  if (!options.allow_truncated) image->check_bytes();
  auto pixels = make(plan.shape);
  run_image_plan(*image, plan, pixels.mutable_data_ptr<uint8_t>());
  return pixels;
}

Tensor decode_image(std::span<const std::byte> file, const ImageOptions& options) {
  return detail::decode_image_where(file, options, [](const ImageShape& shape) {
    return at::empty_strided({shape.channels, shape.height, shape.width},
                             {1, shape.width * shape.channels, shape.channels}, at::TensorOptions().dtype(at::kByte));
  });
}

void decode_image_into(std::span<const std::byte> file, std::span<uint8_t> pixels, const ImageOptions& options) {
  const auto image = open_image(file, options.apply_exif);
  const auto plan = plan_image(*image, options);
  if (!options.allow_truncated) image->check_bytes();
  LEVIN_CHECK(static_cast<int64_t>(pixels.size()) == plan.shape.bytes(), "[image] the image has ", plan.shape.height,
              " x ", plan.shape.width, " pixels of ", plan.shape.channels, " bytes, ", plan.shape.bytes(),
              " in all, and there is room for ", pixels.size());
  run_image_plan(*image, plan, pixels.data());
}

Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  const auto file = read_file(path);
  try {
    return decode_image(std::as_bytes(std::span(file)), options);
  } catch (const Error& error) {
    constexpr std::string_view kOperation = "[image] ";
    std::string_view line = error.what();
    if (line.starts_with(kOperation)) line.remove_prefix(kOperation.size());
    throw Error(detail::concat(kOperation, path, ": ", line));
  }
}

std::string encode_image(const Tensor& pixels, const EncodeOptions& options) {
  const detail::ImageCodec* codec = nullptr;
  for (const auto& one : detail::image_codecs())
    if (one.name == options.format) codec = &one;
  LEVIN_CHECK(codec, "[encode_image] format \"", options.format, "\" is not known (known: ", join(written_kinds(false)),
              ")");
  LEVIN_CHECK(codec->encode, "[encode_image] format \"", options.format,
              "\" is read, but not written (written are: ", join(written_kinds(false)), ")");
  LEVIN_CHECK(
      pixels.defined() && pixels.dim() == 3 && pixels.scalar_type() == at::kByte && pixels.numel() > 0,
      "[encode_image] pixels must be uint8 [C, H, W], and are ",
      pixels.defined() ? detail::concat(c10::toString(pixels.scalar_type()), " ", pixels.sizes()) : "undefined");
  const auto channels = pixels.size(0);
  const auto height = pixels.size(1);
  const auto width = pixels.size(2);
  const auto packed = pixels.detach().cpu().permute({1, 2, 0}).contiguous();
  const auto* data = packed.const_data_ptr<uint8_t>();
  return codec->encode(data, height, width, static_cast<int>(channels), options);
}

void write_image(const std::filesystem::path& path, const Tensor& pixels, EncodeOptions options) {
  const auto* codec = detail::image_codec_by_name(path.filename().string());
  if (!codec || !codec->encode)
    fail_unknown("write_image", detail::concat("the extension of ", path), path.extension().string(),
                 written_kinds(true));
  options.format = codec->name;
  write_file(path, encode_image(pixels, options));
}

}  // namespace levin
