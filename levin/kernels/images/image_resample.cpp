#include "levin/kernels/images/image_resample.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "levin/core/error.h"
#include "levin/core/parallel.h"
#include "levin/kernels/images/image_resample_detail.h"

namespace levin::kernels {
namespace {

constexpr int kResampleBits = 32 - 8 - 2;
constexpr int64_t kMostResampled = 65535;  // blocks along z

double resample_share(bool bicubic, double distance) {
  distance = std::abs(distance);
  if (!bicubic) return distance < 1 ? 1 - distance : 0;
  if (distance < 1) return (1.5 * distance - 2.5) * distance * distance + 1;
  if (distance < 2) return (((distance - 5) * distance + 8) * distance - 4) * -0.5;
  return 0;
}

// Which pixels of a line make pixel `at` of the new line, with weights of 22 bits after the point: Pillow's arithmetic.
struct ResampleLine {
  int32_t first = 0;
  std::vector<int32_t> weights;

  ResampleLine(int32_t in, int32_t out, int32_t at, bool bicubic) {
    if (in == out) {
      first = at;
      weights = {1 << kResampleBits};
      return;
    }
    const double scale = static_cast<double>(in) / static_cast<double>(out), stretch = std::max(scale, 1.0);
    const double support = (bicubic ? 2 : 1) * stretch, inverse = 1 / stretch;
    const double center = (static_cast<double>(at) + 0.5) * scale;
    first = std::max(static_cast<int32_t>(center - support + 0.5), 0);
    const int32_t last = std::min(static_cast<int32_t>(center + support + 0.5), in);
    std::vector<double> line;
    double sum = 0;
    for (int32_t j = 0; j < last - first; ++j) {
      line.push_back(
          resample_share(bicubic, (static_cast<double>(j) + static_cast<double>(first) - center + 0.5) * inverse));
      sum += line.back();
    }
    for (const double one : line) {
      const double share = (sum != 0 ? one / sum : one) * (1 << kResampleBits);
      weights.push_back(static_cast<int32_t>(share < 0 ? share - 0.5 : share + 0.5));
    }
  }
  int32_t end() const { return first + static_cast<int32_t>(weights.size()); }
};

std::vector<ResampleLine> resample_lines(int32_t in, int32_t out, bool bicubic) {
  std::vector<ResampleLine> lines;
  lines.reserve(static_cast<size_t>(out));
  for (int32_t i = 0; i < out; ++i) lines.emplace_back(in, out, i, bicubic);
  return lines;
}

uint8_t resampled_byte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kResampleBits, 0, 255));
}

// Pillow resizes rows first, and columns first only where that leaves far less to do. Bytes are rounded in between.
bool columns_come_first(const detail::ResampleEntry& entry) {
  return entry.resized_height != entry.in_height && entry.resized_width != entry.in_width &&
         entry.resized_height < entry.in_height &&
         2 * (static_cast<int64_t>(entry.in_width) - entry.resized_width) <
             static_cast<int64_t>(entry.in_height) - entry.resized_height;
}

// The resized part [resized_height, resized_width, channels].
std::vector<uint8_t> resized_part(const detail::ResampleEntry& entry, int64_t channels, bool bicubic) {
  const auto columns = resample_lines(entry.in_width, entry.resized_width, bicubic);
  const auto rows = resample_lines(entry.in_height, entry.resized_height, bicubic);
  const int64_t width = entry.resized_width, height = entry.resized_height, in_width = entry.in_width;
  const auto source = [&](int64_t y, int64_t x, int64_t c) {
    return static_cast<int32_t>(entry.origin[y * entry.row + x * entry.column + c * entry.channel]);
  };
  const auto sum_over = [](const ResampleLine& line, const auto& pixel) {
    int32_t sum = 1 << (kResampleBits - 1);
    for (size_t j = 0; j < line.weights.size(); ++j)
      sum += pixel(line.first + static_cast<int64_t>(j)) * line.weights[j];
    return resampled_byte(sum);
  };
  std::vector<uint8_t> result(static_cast<size_t>(height * width * channels));
  std::vector<uint8_t> between;
  if (columns_come_first(entry)) {
    between.resize(static_cast<size_t>(height * in_width * channels));
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < in_width; ++x)
        for (int64_t c = 0; c < channels; ++c)
          between[static_cast<size_t>((y * in_width + x) * channels + c)] =
              sum_over(rows[static_cast<size_t>(y)], [&](int64_t from) { return source(from, x, c); });
    for (int64_t y = 0; y < height; ++y)
      for (int64_t x = 0; x < width; ++x)
        for (int64_t c = 0; c < channels; ++c)
          result[static_cast<size_t>((y * width + x) * channels + c)] =
              sum_over(columns[static_cast<size_t>(x)], [&](int64_t from) {
                return static_cast<int32_t>(between[static_cast<size_t>((y * in_width + from) * channels + c)]);
              });
    return result;
  }
  between.resize(static_cast<size_t>(entry.in_height * width * channels));
  for (int64_t y = 0; y < entry.in_height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < channels; ++c)
        between[static_cast<size_t>((y * width + x) * channels + c)] =
            sum_over(columns[static_cast<size_t>(x)], [&](int64_t from) { return source(y, from, c); });
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < channels; ++c)
        result[static_cast<size_t>((y * width + x) * channels + c)] =
            sum_over(rows[static_cast<size_t>(y)], [&](int64_t from) {
              return static_cast<int32_t>(between[static_cast<size_t>((from * width + x) * channels + c)]);
            });
  return result;
}

// torchvision's three steps, each rounded.
template <class T>
T resampled_value(const detail::ResampleLaunch& launch, uint8_t byte, int64_t channel) {
  if constexpr (std::is_same_v<T, uint8_t>) {
    return byte;
  } else {
    volatile float scaled = static_cast<float>(byte) * static_cast<float>(1.0 / 255);
    volatile float shifted = scaled - launch.mean[channel];
    return static_cast<T>(static_cast<float>(shifted / launch.std[channel]));
  }
}

template <class T>
void resample_cpu(std::span<const detail::ResampleEntry> entries, const detail::ResampleLaunch& launch) {
  const int64_t height = launch.height, width = launch.width, channels = launch.channels;
  const int64_t out_channel = launch.channels_last ? 1 : height * width;
  const int64_t out_column = launch.channels_last ? channels : 1;
  parallel_for(0, launch.batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto& entry = entries[static_cast<size_t>(i)];
      const auto pixels = resized_part(entry, channels, launch.bicubic);
      T* out = static_cast<T*>(launch.out) + i * channels * height * width;
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x) {
          const int64_t from_y = (entry.flip_y ? height - 1 - y : y) + entry.top;
          const int64_t from_x = (entry.flip_x ? width - 1 - x : x) + entry.left;
          const bool inside =
              from_y >= 0 && from_y < entry.resized_height && from_x >= 0 && from_x < entry.resized_width;
          for (int64_t c = 0; c < channels; ++c) {
            const uint8_t byte =
                inside ? pixels[static_cast<size_t>((from_y * entry.resized_width + from_x) * channels + c)]
                       : launch.fill[c];
            out[c * out_channel + (y * width + x) * out_column] = resampled_value<T>(launch, byte, c);
          }
        }
    }
  });
}

detail::ResampleType resample_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return detail::ResampleType::kByte;
    case at::kFloat:
      return detail::ResampleType::kFloat;
    case at::kHalf:
      return detail::ResampleType::kHalf;
    case at::kBFloat16:
      return detail::ResampleType::kBFloat16;
    default:
      levin::detail::fail(
          levin::detail::concat("[resample_images] ", dtype, " is not known; Byte, Float, Half and BFloat16 are"));
  }
}

double resample_number(std::span<const double> values, int64_t channel, double otherwise) {
  return values.empty() ? otherwise : values.size() == 1 ? values[0] : values[static_cast<size_t>(channel)];
}

// Where the first pixel of the part lies, and how far apart its neighbours are once the image is upright.
detail::ResampleEntry resample_entry(const Tensor& image, const ResamplePlacement& place) {
  const int orientation = place.orientation;
  LEVIN_CHECK(orientation >= 1 && orientation <= 8, "[resample_images] orientation ", orientation, " is not 1 to 8");
  const bool flips_rows = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool flips_columns = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  int64_t height = image.size(1), width = image.size(2), row = image.stride(1), column = image.stride(2);
  const uint8_t* origin = image.const_data_ptr<uint8_t>();
  if (flips_rows) origin += (height - 1) * row, row = -row;
  if (flips_columns) origin += (width - 1) * column, column = -column;
  if (orientation >= 5) std::swap(row, column), std::swap(height, width);
  LEVIN_CHECK(place.top >= 0 && place.left >= 0 && place.height > 0 && place.width > 0 &&
                  place.top <= height - place.height && place.left <= width - place.width,
              "[resample_images] the part of ", place.height, " x ", place.width, " at row ", place.top, ", column ",
              place.left, " is not within the image, which has ", height, " x ", width);
  LEVIN_CHECK(place.resized_height > 0 && place.resized_width > 0, "[resample_images] to ", place.resized_height, " x ",
              place.resized_width, ": both must be at least 1");
  return {.origin = origin + place.top * row + place.left * column,
          .row = row,
          .column = column,
          .channel = image.stride(0),
          .in_height = place.height,
          .in_width = place.width,
          .resized_height = place.resized_height,
          .resized_width = place.resized_width,
          .top = place.window_top,
          .left = place.window_left,
          .flip_x = place.flip_x,
          .flip_y = place.flip_y};
}

int32_t resample_taps(int32_t in, int32_t out, bool bicubic) {
  if (in == out) return 1;
  const double stretch = std::max(static_cast<double>(in) / static_cast<double>(out), 1.0);
  return static_cast<int32_t>(std::ceil((bicubic ? 2 : 1) * stretch)) * 2 + 1;
}

}  // namespace

Tensor resample_images(std::span<const Tensor> images, std::span<const ResamplePlacement> placements,
                       const ResampleImages& options) {
  LEVIN_CHECK(!images.empty() && images.size() == placements.size(), "[resample_images] ", placements.size(),
              " placements for ", images.size(), " images");
  LEVIN_CHECK(options.height > 0 && options.width > 0, "[resample_images] to ", options.height, " x ", options.width,
              ": both must be at least 1");
  const auto device = images[0].device();
  const int64_t channels = images[0].dim() == 3 ? images[0].size(0) : 0;
  LEVIN_CHECK(channels == 1 || channels == 3, "[resample_images] images are uint8 [C, H, W] of 1 or 3 channels; the ",
              "first is ", images[0].scalar_type(), " ", images[0].sizes());
  for (const auto* values : {&options.mean, &options.std, &options.fill})
    LEVIN_CHECK(values->size() <= 1 || static_cast<int64_t>(values->size()) == channels, "[resample_images] ",
                values == &options.mean  ? "mean"
                : values == &options.std ? "std"
                                         : "fill",
                " has ", values->size(), " values, the images ", channels, " channels");
  detail::ResampleLaunch launch{.type = resample_type(options.dtype),
                                .channels_last = options.channels_last,
                                .bicubic = options.bicubic,
                                .batch = static_cast<int32_t>(images.size()),
                                .channels = static_cast<int32_t>(channels),
                                .height = static_cast<int32_t>(options.height),
                                .width = static_cast<int32_t>(options.width)};
  for (int64_t c = 0; c < channels; ++c) {
    launch.mean[c] = static_cast<float>(resample_number(options.mean, c, 0));
    launch.std[c] = static_cast<float>(resample_number(options.std, c, 1));
    launch.fill[c] = static_cast<uint8_t>(std::clamp(resample_number(options.fill, c, 0), 0.0, 255.0));
    LEVIN_CHECK(launch.std[c] != 0, "[resample_images] std of channel ", c, " is 0");
  }
  std::vector<detail::ResampleEntry> entries;
  entries.reserve(images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const auto& image = images[i];
    LEVIN_CHECK(
        image.dim() == 3 && image.scalar_type() == at::kByte && image.size(0) == channels && image.device() == device,
        "[resample_images] image ", i, " is ", image.scalar_type(), " ", image.sizes(), " on ", image.device(),
        "; the first is Byte ", images[0].sizes(), " on ", device);
    entries.push_back(resample_entry(image, placements[i]));
    const auto& entry = entries.back();
    launch.taps = std::max({launch.taps, resample_taps(entry.in_height, entry.resized_height, options.bicubic),
                            resample_taps(entry.in_width, entry.resized_width, options.bicubic)});
  }
  Tensor out =
      at::empty({launch.batch, channels, options.height, options.width}, images[0].options().dtype(options.dtype),
                options.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  if (device.is_cuda()) {
    LEVIN_CHECK(launch.batch <= kMostResampled, "[resample_images] ", launch.batch, " images are more than ",
                kMostResampled);
    detail::resample_images_cuda(entries, launch, out);
    return out;
  }
  LEVIN_CHECK(device.is_cpu(), "[resample_images] images are on ", device, "; cpu and cuda are known");
  launch.out = out.mutable_data_ptr();
  switch (launch.type) {
    case detail::ResampleType::kByte:
      resample_cpu<uint8_t>(entries, launch);
      break;
    case detail::ResampleType::kFloat:
      resample_cpu<float>(entries, launch);
      break;
    case detail::ResampleType::kHalf:
      resample_cpu<at::Half>(entries, launch);
      break;
    case detail::ResampleType::kBFloat16:
      resample_cpu<at::BFloat16>(entries, launch);
      break;
  }
  return out;
}

}  // namespace levin::kernels
