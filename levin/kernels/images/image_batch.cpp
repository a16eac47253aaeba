#include "levin/kernels/images/image_batch.h"

#include <algorithm>
#include <array>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/images/image_batch_detail.h"

namespace levin::kernels {
namespace {

detail::NumberType pixel_type(at::ScalarType dtype, const char* operation) {
  switch (dtype) {
    case at::kFloat:
      return detail::NumberType::kFloat;
    case at::kHalf:
      return detail::NumberType::kHalf;
    case at::kBFloat16:
      return detail::NumberType::kBFloat16;
    default:
      levin::detail::fail(
          levin::detail::concat("[", operation, "] ", dtype, " is not known; Float, Half and BFloat16 are"));
  }
}

double number_of(std::span<const double> values, int64_t channel, double otherwise) {
  return values.empty() ? otherwise : values.size() == 1 ? values[0] : values[static_cast<size_t>(channel)];
}

// A byte has 256 values: what becomes of them is worked out once for each channel, in the order and the precision of
// torchvision's steps. `volatile` keeps the compiler from joining a product and a difference, which would round once
// less.
template <class T>
struct PixelTable {
  std::vector<float> mean, std;
  std::vector<T> values;  // [channels, 256]

  void fill(const detail::NormalizeLaunch& launch) {
    const auto channels = static_cast<size_t>(launch.channels);
    if (mean.size() == channels && std::equal(mean.begin(), mean.end(), launch.mean) &&
        std::equal(std.begin(), std.end(), launch.std))
      return;
    mean.assign(launch.mean, launch.mean + channels);
    std.assign(launch.std, launch.std + channels);
    values.resize(channels * 256);
    for (size_t c = 0; c < channels; ++c)
      for (size_t v = 0; v < 256; ++v) {
        volatile float scaled = static_cast<float>(v) * static_cast<float>(1.0 / 255);
        volatile float shifted = scaled - mean[c];
        values[c * 256 + v] = static_cast<T>(static_cast<float>(shifted / std[c]));
      }
  }
};

// One row of one image: `in` points at what the first new pixel shows.
template <class T>
struct RowWriter {
  const detail::NormalizeLaunch& launch;
  const T* table;
  int64_t out_channel, out_column;

  void blank(T* out, int64_t from, int64_t to) const {
    for (int64_t x = from; x < to; ++x)
      for (int64_t c = 0; c < launch.channels; ++c)
        out[c * out_channel + x * out_column] = table[c * 256 + launch.fill];
  }
  // Columns [from, to) of the new image, whose column x shows column x - from of `in`.
  void copy(const uint8_t* in, T* out, int64_t from, int64_t to, bool flip) const {
    const int64_t step = flip ? -launch.in_column : launch.in_column;
    if (flip) in += (to - from - 1) * launch.in_column;
    if (launch.channels == 3 && out_column == 3) {
      T* place = out + from * 3;
      for (int64_t x = from; x < to; ++x, in += step, place += 3) {
        place[0] = table[in[0]];
        place[1] = table[256 + in[launch.in_channel]];
        place[2] = table[512 + in[2 * launch.in_channel]];
      }
      return;
    }
    for (int64_t c = 0; c < launch.channels; ++c) {
      const uint8_t* line = in + c * launch.in_channel;
      const T* values = table + c * 256;
      T* place = out + c * out_channel + from * out_column;
      int64_t x = from;
      // Some are read before any is written. A processor that takes a byte for one of those which were just written
      // waits; then once for all of them.
      for (std::array<T, 16> next; x + 16 <= to; x += 16) {
        for (auto& value : next) value = values[*line], line += step;
        for (const auto& value : next) *place = value, place += out_column;
      }
      for (; x < to; ++x, line += step, place += out_column) *place = values[*line];
    }
  }
};

template <class T>
void normalize_cpu(const detail::NormalizeLaunch& launch, std::span<const ImagePlacement> placements) {
  thread_local PixelTable<T> cached;
  cached.fill(launch);
  const T* table = cached.values.data();
  const int64_t height = launch.height, width = launch.width, channels = launch.channels;
  const int64_t out_channel = launch.channels_last ? 1 : height * width;
  const int64_t out_column = launch.channels_last ? channels : 1, out_row = width * out_column;
  const RowWriter<T> writer{launch, table, out_channel, out_column};
  const auto images = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const ImagePlacement place = placements.empty() ? ImagePlacement{} : placements[static_cast<size_t>(i)];
      const uint8_t* in = launch.in + i * launch.in_image;
      T* out = static_cast<T*>(launch.out) + i * channels * height * width;
      // The columns of the cut that lie in the image, and where a mirror puts them.
      int64_t from = std::clamp<int64_t>(-place.left, 0, width);
      int64_t to = std::clamp<int64_t>(launch.in_width - place.left, from, width);
      const int64_t first = place.left + from;
      if (place.flip) {
        const int64_t mirrored = width - to;
        to = width - from;
        from = mirrored;
      }
      for (int64_t y = 0; y < height; ++y, out += out_row) {
        const int64_t row = y + place.top;
        if (row < 0 || row >= launch.in_height) {
          writer.blank(out, 0, width);
          continue;
        }
        writer.blank(out, 0, from);
        if (from < to) writer.copy(in + row * launch.in_row + first * launch.in_column, out, from, to, place.flip != 0);
        writer.blank(out, to, width);
      }
    }
  };
  if (launch.batch == 1)
    images(0, 1);
  else
    parallel_for(0, launch.batch, 1, images);
}

void check_values(std::span<const double> values, int64_t channels, const char* operation, const char* name) {
  LEVIN_CHECK(values.size() <= 1 || static_cast<int64_t>(values.size()) == channels, "[", operation, "] ", name,
              " has ", values.size(), " values, the images ", channels, " channels");
}

}  // namespace

Tensor normalize_images(const Tensor& images, const NormalizeImages& options,
                        std::span<const ImagePlacement> placements) {
  constexpr const char* kOperation = "normalize_images";
  LEVIN_CHECK(images.dim() == 4 && images.scalar_type() == at::kByte,
              "[normalize_images] images are uint8 [B, C, H, W]; ", "these are ", images.scalar_type(), " ",
              images.sizes());
  const int64_t batch = images.size(0), channels = images.size(1);
  LEVIN_CHECK(channels <= detail::kMaxChannels, "[normalize_images] ", channels, " channels are more than ",
              detail::kMaxChannels);
  LEVIN_CHECK(placements.empty() || static_cast<int64_t>(placements.size()) == batch, "[normalize_images] ",
              placements.size(), " placements for ", batch, " images");
  check_values(options.mean, channels, kOperation, "mean");
  check_values(options.std, channels, kOperation, "std");
  detail::NormalizeLaunch launch;
  for (int64_t c = 0; c < channels; ++c) {
    launch.mean[c] = static_cast<float>(number_of(options.mean, c, 0));
    launch.std[c] = static_cast<float>(number_of(options.std, c, 1));
    LEVIN_CHECK(launch.std[c] != 0, "[normalize_images] std of channel ", c, " is 0");
  }
  launch.type = pixel_type(options.dtype, kOperation);
  launch.in_image = images.stride(0);
  launch.in_channel = images.stride(1);
  launch.in_row = images.stride(2);
  launch.in_column = images.stride(3);
  launch.in_height = static_cast<int32_t>(images.size(2));
  launch.in_width = static_cast<int32_t>(images.size(3));
  launch.channels_last = options.channels_last;
  launch.batch = static_cast<int32_t>(batch);
  launch.channels = static_cast<int32_t>(channels);
  launch.height = static_cast<int32_t>(options.height ? options.height : images.size(2));
  launch.width = static_cast<int32_t>(options.width ? options.width : images.size(3));
  launch.fill = static_cast<uint8_t>(options.fill);
  Tensor out = at::empty({batch, channels, launch.height, launch.width}, images.options().dtype(options.dtype),
                         options.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  if (out.numel() == 0) return out;
  if (images.is_cuda()) {
    LEVIN_CHECK(batch <= detail::kMaxBatch, "[normalize_images] ", batch, " images are more than ", detail::kMaxBatch);
    detail::normalize_images_cuda(images, launch, placements, out);
    return out;
  }
  LEVIN_CHECK(images.is_cpu(), "[normalize_images] images are on ", images.device(), "; cpu and cuda are known");
  launch.in = images.const_data_ptr<uint8_t>();
  launch.out = out.mutable_data_ptr();
  switch (launch.type) {
    case detail::NumberType::kFloat:
      normalize_cpu<float>(launch, placements);
      break;
    case detail::NumberType::kHalf:
      normalize_cpu<at::Half>(launch, placements);
      break;
    case detail::NumberType::kBFloat16:
      normalize_cpu<at::BFloat16>(launch, placements);
      break;
    case detail::NumberType::kNone:
    case detail::NumberType::kDouble:
      levin::detail::fail("[normalize_images] pixels are float, half or bfloat16");
  }
  return out;
}

void erase_images(Tensor& images, std::span<const EraseBox> boxes, std::span<const double> value) {
  LEVIN_CHECK(images.dim() == 4 && static_cast<int64_t>(boxes.size()) == images.size(0), "[erase_images] ",
              boxes.size(), " boxes for images ", images.sizes());
  check_values(value, images.size(1), "erase_images", "value");
  const int64_t channels = images.size(1);
  if (images.is_cuda() && !boxes.empty()) {
    LEVIN_CHECK(channels <= detail::kMaxChannels, "[erase_images] ", channels, " channels are more than ",
                detail::kMaxChannels);
    LEVIN_CHECK(images.size(0) <= detail::kMaxBatch, "[erase_images] ", images.size(0), " images are more than ",
                detail::kMaxBatch);
    detail::EraseLaunch launch{.type = pixel_type(images.scalar_type(), "erase_images"),
                               .image = images.stride(0),
                               .channel = images.stride(1),
                               .row = images.stride(2),
                               .column = images.stride(3),
                               .batch = static_cast<int32_t>(images.size(0)),
                               .channels = static_cast<int32_t>(channels)};
    for (int64_t c = 0; c < channels; ++c) launch.value[c] = static_cast<float>(number_of(value, c, 0));
    detail::erase_images_cuda(images, launch, boxes);
    return;
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    const EraseBox& box = boxes[i];
    if (box.height <= 0 || box.width <= 0) continue;
    Tensor part = images[static_cast<int64_t>(i)].narrow(1, box.top, box.height).narrow(2, box.left, box.width);
    if (value.size() <= 1) {
      part.fill_(number_of(value, 0, 0));
    } else {
      for (int64_t c = 0; c < channels; ++c) part[c].fill_(number_of(value, c, 0));
    }
  }
}

}  // namespace levin::kernels
