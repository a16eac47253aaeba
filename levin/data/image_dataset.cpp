#include "levin/data/image_dataset.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/core/main.h"
#include "levin/data/transforms/color.h"
#include "levin/data/transforms/pixel_plan.h"
#include "levin/io/images/decode_where.h"
#include "levin/io/images/exif.h"
#include "levin/io/records/plain_fields.h"

namespace levin {
namespace {

/// Numbers of a label as a tensor: one is a scalar, made by hand since every sample has one.
template <class T>
Tensor label_tensor(const std::vector<T>& numbers) {
  if (numbers.size() == 1) {
    Tensor label = at::empty({}, c10::CppTypeToScalarType<T>::value);
    *label.mutable_data_ptr<T>() = numbers[0];
    return label;
  }
  return at::tensor(numbers);
}

Tensor label_tensor(const FieldValue& value) {
  if (const auto* whole = std::get_if<std::vector<int64_t>>(&value)) return label_tensor(*whole);
  if (const auto* floats = std::get_if<std::vector<float>>(&value)) return label_tensor(*floats);
  if (const auto* doubles = std::get_if<std::vector<double>>(&value)) return label_tensor(*doubles);
  if (const auto* tensor = std::get_if<Tensor>(&value)) return *tensor;
  throw Error("the label is text; a class is a whole number");
}

/// What went wrong, without the operation in brackets, which the caller's own replaces.
std::string reason(const std::exception& error) {
  auto line = one_line(error);
  if (line.starts_with('['))
    if (const auto end = line.find("] "); end != std::string::npos) line = line.substr(end + 2);
  return line;
}

}  // namespace

Tensor detail::to_mode(const Tensor& image, ImageMode mode) {
  const int64_t channels = image.size(0);
  const int64_t wanted = mode == ImageMode::kGray ? 1 : mode == ImageMode::kRgb ? 3 : 4;
  if (mode == ImageMode::kUnchanged || channels == wanted) return image;
  const bool gray = channels <= 2;
  const Tensor colors = image.narrow(0, 0, gray ? 1 : 3);
  if (wanted == 1) return gray ? colors : transforms::to_grayscale(colors);
  std::vector<Tensor> planes{gray ? colors.expand({3, -1, -1}) : colors};
  if (wanted == 4)
    planes.push_back(channels == 2 ? image.narrow(0, 1, 1)
                                   : at::full({1, image.size(1), image.size(2)}, 255, at::kByte));
  // Beside each other in memory, as decoders put them.
  for (auto& plane : planes) plane = plane.permute({1, 2, 0});
  return at::cat(planes, 2).permute({2, 0, 1});
}

ImageDataset::ImageDataset(const std::string& path, ImageDatasetOptions options)
    : ImageDataset(open_records(path, {.format = options.format, .split = options.split}), options) {}

ImageDataset::ImageDataset(std::shared_ptr<const RecordReader> records, ImageDatasetOptions options)
    : records_(std::move(records)), options_(std::move(options)) {
  LEVIN_CHECK(records_ != nullptr, "[data] an ImageDataset needs records");
}

Tensor ImageDataset::decode(const Record& record, Random& random, SamplePlace& place) const {
  const FieldValue* value = record.find("image");
  LEVIN_CHECK(value != nullptr, "the record has no field \"image\"");
  if (const auto* text = std::get_if<std::string>(value)) {
    const auto bytes = std::as_bytes(std::span(*text));
    const ImageOptions how{.mode = options_.mode, .apply_exif = options_.apply_exif};
    if (!options_.transform.empty()) return options_.transform.decode(bytes, random, how);
    // Nothing comes after the decoder, so it may write where the batch will be.
    return detail::decode_image_where(
        bytes, how, [&](const ImageShape& shape) { return place.image(shape.channels, shape.height, shape.width); });
  }
  const auto* pixels = std::get_if<Tensor>(value);
  LEVIN_CHECK(pixels != nullptr, "the field \"image\" is neither encoded bytes nor pixels");
  return options_.transform(detail::to_mode(detail::channels_first(*pixels, "data"), options_.mode), random);
}

template <class F>
auto ImageDataset::with_record(int64_t index, F&& f) const {
  LEVIN_CHECK(index >= 0 && index < size(), "[data] sample ", index, " was asked for, there are ", size());
  try {
    return f(records_->read(index));
  } catch (const std::exception& error) {
    const auto line = reason(error), where = records_->where(index);
    throw Error(line.find(where) != std::string::npos
                    ? detail::concat("[data] sample ", index, ": ", line)
                    : detail::concat("[data] sample ", index, ", ", where, ": ", line));
  }
}

Batch ImageDataset::get(int64_t index, Random& random) const {
  SamplePlace anywhere;
  return get(index, random, anywhere);
}

bool ImageDataset::plan(Record& record, Random& random, const detail::GpuJpegDecoder& decoder,
                        detail::EncodedImage& sample) const {
  const FieldValue* value = record.find("image");
  const auto* text = value ? std::get_if<std::string>(value) : nullptr;
  if (!text) return false;
  const auto bytes = std::as_bytes(std::span(*text));
  const auto head = detail::jpeg_head(bytes);
  if (!head || !decoder.takes(bytes, *head)) return false;
  const ImageInfo info = image_info(bytes);
  const int orientation = options_.apply_exif ? info.orientation : 1;
  const ImageShape shape = decoded_shape(info, {.mode = options_.mode, .apply_exif = options_.apply_exif});
  transforms::PixelPlan plan(shape.height, shape.width);
  const Random before = random;
  options_.transform.plan(plan, random);
  if (!plan.fits()) {
    warn_once("[data] the CPU decodes: the GPU resizes once, before any border and before images are floats");
    random = before;
    return false;
  }
  sample.head = *head;
  sample.region = detail::stored_region(plan.region(), orientation, info.height, info.width);
  sample.placement = plan.placement(orientation);
  sample.how = plan.options();
  sample.channels = static_cast<int>(shape.channels);
  for (auto& [name, field] : record.fields)
    if (name == "image") sample.file = std::move(std::get<std::string>(field));
  return true;
}

std::string ImageDataset::why_not_gpu() const {
  if (options_.mode != ImageMode::kRgb && options_.mode != ImageMode::kGray)
    return "images are wanted with the channels of their files or with alpha; RGB and grey are decoded on the GPU";
  const auto step = options_.transform.unplanned();
  return step.empty() ? step : detail::concat("the transform has ", step, ", which runs on the CPU alone");
}

Batch ImageDataset::get(int64_t index, Random& random, SamplePlace& place) const {
  return with_record(index, [&](Record record) {
    Batch sample{{"image", decode(record, random, place)}};
    if (const FieldValue* label = record.find("label")) sample.set("label", label_tensor(*label));
    return sample;
  });
}

detail::EncodedImage ImageDataset::get_encoded(int64_t index, Random& random,
                                               const detail::GpuJpegDecoder* decoder) const {
  return with_record(index, [&](Record record) {
    detail::EncodedImage sample;
    if (const FieldValue* label = record.find("label")) sample.label = label_tensor(*label);
    if (decoder && plan(record, random, *decoder, sample)) return sample;
    SamplePlace anywhere;
    sample.pixels = decode(record, random, anywhere);
    return sample;
  });
}

}  // namespace levin
