#include "levin/io/images/image.h"

#include <algorithm>
#include <memory>

#include <ATen/ops/empty_strided.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/images/decode_where.h"
#include "levin/io/images/exif.h"
#include "levin/io/images/image_codec.h"

namespace levin {
namespace {

using detail::OpenImage;

std::unique_ptr<OpenImage> open_image(std::span<const std::byte> file, bool orientation) {
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

ImagePlan plan_image(const ImageInfo& info, const ImageOptions& options) {
  LEVIN_CHECK(options.at_least >= 0, "[image] at_least must not be negative, and is ", options.at_least);
  // Sides have at most 31 bits, so the product fits.
  LEVIN_CHECK(info.height * info.width <= options.max_pixels, "[image] the ", info.format, " file declares ",
              info.height, " x ", info.width, " pixels, more than max_pixels (", options.max_pixels, ") allows");
  LEVIN_CHECK(options.at_least == 0 || !options.region, "[image] at_least and region exclude each other");
  ImagePlan plan;
  auto& request = plan.request;
  constexpr int kChannels[] = {0, 1, 3, 4};
  request.channels = options.mode == ImageMode::kUnchanged ? info.channels : kChannels[static_cast<int>(options.mode)];
  const auto* codec = detail::find_image_codec(info.format);
  if (codec && codec->scale) request.scale = codec->scale(info, options.at_least);
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

}  // namespace

ImageInfo image_info(std::span<const std::byte> file) {
  return open_image(file, true)->info();
}

ImageShape decoded_shape(const ImageInfo& info, const ImageOptions& options) {
  return plan_image(info, options).shape;
}

Tensor detail::decode_image_where(std::span<const std::byte> file, const ImageOptions& options,
                                  const std::function<Tensor(const ImageShape&)>& make) {
  const auto image = open_image(file, options.apply_exif);
  const auto plan = plan_image(image->info(), options);
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
  const auto plan = plan_image(image->info(), options);
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
  const auto* codec = detail::find_image_codec(options.format);
  const auto written = join(detail::written_image_kinds());
  LEVIN_CHECK(codec, "[encode_image] format \"", options.format, "\" is not known (known: ", written, ")");
  LEVIN_CHECK(codec->encode, "[encode_image] format \"", options.format,
              "\" is read, but not written (written are: ", written, ")");
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
  const auto* codec = detail::image_codec_by_path(path.filename().string());
  if (!codec || !codec->encode) {
    std::vector<std::string> known;
    for (const auto& one : detail::image_codecs())
      for (const auto end : one.extensions)
        if (one.encode) known.push_back("." + std::string(end));
    fail_unknown("write_image", detail::concat("the extension of ", path), path.extension().string(), known);
  }
  options.format = codec->name;
  write_file(path, encode_image(pixels, options));
}

}  // namespace levin
