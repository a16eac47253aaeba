#include "levin/program/commands/pack_images.h"

#include "levin/core/error.h"
#include "levin/core/words.h"
#include "levin/data/image_dataset.h"
#include "levin/data/transforms/resize.h"
#include "levin/io/images/image.h"
#include "levin/io/images/image_codec.h"
#include "levin/io/records/plain_fields.h"

namespace levin::cli {
namespace {

std::string_view kind_of(std::string_view bytes) {
  const auto* codec = levin::detail::image_codec_of(bytes);
  return codec ? codec->name : "";
}

/// What the images are to be: a kind of image files, or "raw".
std::string wanted_kind(const FieldValue& image, const PackImages& images) {
  if (!images.reencode.empty()) return images.reencode;
  if (!images.format->holds_encoded) return "raw";
  if (const auto* bytes = std::get_if<std::string>(&image)) return std::string(kind_of(*bytes));
  return images.format->prefers_raw ? "raw" : "png";
}

}  // namespace

void check_packable(const Record& first, const PackImages& images, const std::string& from) {
  const auto& format = *images.format;
  const bool has_image = first.find("image") != nullptr;
  std::vector<std::string> fields;
  for (const auto& field : first.fields) fields.push_back(field.first);
  LEVIN_CHECK(format.only.empty() || first.find(format.only), "[levin pack] the records of ", from, " have ",
              join(fields), " and no ", format.only, "; ", format.name, " holds ",
              format.only == "image" ? "images" : format.only, " alone");
  LEVIN_CHECK(has_image || (images.reencode.empty() && images.resize == 0), "[levin pack] the records of ", from,
              " have ", join(fields), " and no image; there is nothing to ",
              images.resize > 0 ? "resize" : "encode again");
  LEVIN_CHECK(images.reencode != "raw" || format.holds_raw, "[levin pack] --reencode raw: ", format.name,
              " holds encoded images alone (", join(levin::detail::written_image_kinds()), ")");
  LEVIN_CHECK(images.reencode.empty() || images.reencode == "raw" || format.holds_encoded, "[levin pack] --reencode ",
              images.reencode, ": ", format.name, " holds raw pixels alone");
}

void prepare_image(Record& record, const PackImages& images) {
  const FieldValue* value = record.find("image");
  if (value == nullptr) return;
  const auto kind = wanted_kind(*value, images);
  const auto* bytes = std::get_if<std::string>(value);
  const bool as_it_is = images.resize == 0 && (bytes ? kind == kind_of(*bytes) : kind == "raw");
  if (as_it_is) return;
  Tensor pixels = levin::detail::pixels_of(record, "levin pack", images.format->mode).permute({2, 0, 1});
  if (images.resize > 0) {
    const auto size = transforms::resized_size(pixels.size(1), pixels.size(2), transforms::Size(images.resize));
    pixels = transforms::resize(pixels, size.height, size.width);
  }
  if (kind == "raw") {
    record.set("image", pixels.permute({1, 2, 0}).contiguous());
    return;
  }
  const auto* codec = levin::detail::find_image_codec(kind);
  LEVIN_CHECK(codec && codec->encode, "images of the kind ", kind.empty() ? "of these bytes" : kind,
              " are not written; --reencode ", join(levin::detail::written_image_kinds(), " or --reencode "),
              " says what they become");
  if (!codec->has_alpha)
    pixels = levin::detail::to_mode(pixels, pixels.size(0) <= 2 ? ImageMode::kGray : ImageMode::kRgb);
  record.set("image", encode_image(pixels, {.format = kind, .quality = images.quality}));
}

uint64_t content_bytes(const Record& record) {
  uint64_t bytes = 0;
  for (const auto& [name, value] : record.fields)
    bytes += std::visit(
        [](const auto& content) -> uint64_t {
          using T = std::remove_cvref_t<decltype(content)>;
          if constexpr (std::is_same_v<T, Tensor>)
            return content.nbytes();
          else
            return content.size() * sizeof(typename T::value_type);
        },
        value);
  return bytes;
}

}  // namespace levin::cli
