#include "levin/io/image.h"

#include <algorithm>
#include <cctype>
#include <memory>

#include <ATen/ops/empty_strided.h>

#include "levin/core/error.h"
#include "levin/core/files.h"
#include "levin/core/words.h"
#include "levin/io/decode_where.h"
#include "levin/io/exif.h"
#include "levin/io/jpeg_codec.h"
#include "levin/io/png_codec.h"

namespace levin {
namespace {

// The head of a file, read once.
struct ImageHead {
  ImageInfo info;
  detail::PngHead png;
};

ImageHead read_image_head(std::span<const std::byte> file, bool orientation) {
  ImageHead head;
  if (detail::is_jpeg(file)) {
    head.info = detail::jpeg_info(file);
    return head;
  }
  LEVIN_CHECK(!file.empty(), "[image] there are no bytes");
  LEVIN_CHECK(detail::is_png(file), "[image] the bytes are neither PNG nor JPEG");
  head.png = detail::png_head(file);
  head.info = {.format = "png",
               .height = head.png.height,
               .width = head.png.width,
               .channels = head.png.channels(),
               .bit_depth = head.png.depth,
               .orientation = orientation ? detail::png_orientation(file) : 1};
  return head;
}

// What is decoded, and how it becomes what was asked for.
struct ImagePlan {
  ImageShape shape;
  detail::CodecRequest request;
  int orientation = 1;
};

ImagePlan plan_image(const ImageInfo& info, const ImageOptions& options) {
  // Sides have at most 31 bits, so the product fits.
  LEVIN_CHECK(info.height * info.width <= options.max_pixels, "[image] the ", info.format, " file declares ",
              info.height, " x ", info.width, " pixels, more than max_pixels (", options.max_pixels, ") allows");
  LEVIN_CHECK(options.at_least >= 0, "[image] at_least must not be negative, and is ", options.at_least);
  LEVIN_CHECK(options.at_least == 0 || !options.region, "[image] at_least and region exclude each other");
  ImagePlan plan;
  auto& request = plan.request;
  constexpr int kChannels[] = {0, 1, 3, 4};
  request.channels = options.mode == ImageMode::kUnchanged ? info.channels : kChannels[static_cast<int>(options.mode)];
  request.scale = info.format == "jpeg" ? detail::jpeg_scale(info, options.at_least) : 1;
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

void run_image_codec(std::span<const std::byte> file, const ImageHead& head, const detail::CodecRequest& request,
                     uint8_t* out) {
  if (head.info.format == "png") {
    detail::decode_png(file, head.png, request, out);
  } else {
    detail::decode_jpeg(file, head.info, request, out);
  }
}

void run_image_plan(std::span<const std::byte> file, const ImageHead& head, const ImagePlan& plan, uint8_t* out) {
  if (plan.orientation == 1) {
    run_image_codec(file, head, plan.request, out);
    return;
  }
  const auto stored = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(plan.shape.bytes()));
  run_image_codec(file, head, plan.request, stored.get());
  const auto& region = plan.request.region;
  detail::turn_upright(stored.get(), region.height, region.width, plan.request.channels, plan.orientation, out);
}

std::string image_format_of(const std::filesystem::path& path) {
  auto extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (extension == ".png") return "png";
  if (extension == ".jpg" || extension == ".jpeg") return "jpeg";
  const std::vector<std::string> known{".png", ".jpg", ".jpeg"};
  fail_unknown("write_image", detail::concat("the extension of ", path), extension, known);
}

}  // namespace

ImageInfo image_info(std::span<const std::byte> file) {
  return read_image_head(file, true).info;
}

ImageShape decoded_shape(const ImageInfo& info, const ImageOptions& options) {
  return plan_image(info, options).shape;
}

Tensor detail::decode_image_where(std::span<const std::byte> file, const ImageOptions& options,
                                  const std::function<Tensor(const ImageShape&)>& make) {
  const auto head = read_image_head(file, options.apply_exif);
  const auto plan = plan_image(head.info, options);
  if (head.info.format == "png" && !options.allow_truncated) detail::check_png_bytes(file, head.png);
  auto pixels = make(plan.shape);
  run_image_plan(file, head, plan, pixels.mutable_data_ptr<uint8_t>());
  return pixels;
}

Tensor decode_image(std::span<const std::byte> file, const ImageOptions& options) {
  return detail::decode_image_where(file, options, [](const ImageShape& shape) {
    return at::empty_strided({shape.channels, shape.height, shape.width},
                             {1, shape.width * shape.channels, shape.channels}, at::TensorOptions().dtype(at::kByte));
  });
}

void decode_image_into(std::span<const std::byte> file, std::span<uint8_t> pixels, const ImageOptions& options) {
  const auto head = read_image_head(file, options.apply_exif);
  const auto plan = plan_image(head.info, options);
  LEVIN_CHECK(static_cast<int64_t>(pixels.size()) == plan.shape.bytes(), "[image] the image has ", plan.shape.height,
              " x ", plan.shape.width, " pixels of ", plan.shape.channels, " bytes, ", plan.shape.bytes(),
              " in all, and there is room for ", pixels.size());
  run_image_plan(file, head, plan, pixels.data());
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
  LEVIN_CHECK(options.format == "png" || options.format == "jpeg", "[encode_image] format \"", options.format,
              "\" is not known (known: png, jpeg)");
  LEVIN_CHECK(
      pixels.defined() && pixels.dim() == 3 && pixels.scalar_type() == at::kByte && pixels.numel() > 0,
      "[encode_image] pixels must be uint8 [C, H, W], and are ",
      pixels.defined() ? detail::concat(c10::toString(pixels.scalar_type()), " ", pixels.sizes()) : "undefined");
  const auto channels = pixels.size(0);
  const auto height = pixels.size(1);
  const auto width = pixels.size(2);
  const auto packed = pixels.detach().cpu().permute({1, 2, 0}).contiguous();
  const auto* data = packed.const_data_ptr<uint8_t>();
  if (options.format == "png") {
    LEVIN_CHECK(channels <= 4, "[encode_image] a PNG has 1 to 4 channels, and the pixels have ", channels);
    LEVIN_CHECK(options.compression >= 0 && options.compression <= 9,
                "[encode_image] compression must be 0 to 9, and is ", options.compression);
    return detail::encode_png(data, height, width, static_cast<int>(channels), options.compression);
  }
  LEVIN_CHECK(channels == 1 || channels == 3, "[encode_image] a JPEG has 1 or 3 channels, and the pixels have ",
              channels);
  LEVIN_CHECK(options.quality >= 1 && options.quality <= 100, "[encode_image] quality must be 1 to 100, and is ",
              options.quality);
  return detail::encode_jpeg(data, height, width, static_cast<int>(channels), options.quality);
}

void write_image(const std::filesystem::path& path, const Tensor& pixels, EncodeOptions options) {
  const auto format = image_format_of(path);
  options.format = format;
  write_file(path, encode_image(pixels, options));
}

}  // namespace levin
