#include "levin/data/transforms/resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

namespace levin::transforms::detail {
namespace {

constexpr int kWeightBits = 32 - 8 - 2;  // a result of 8 bits, and two for weights that are negative or above 1
constexpr int32_t kWeightHalf = 1 << (kWeightBits - 1);

double support_of(ResampleFilter filter) {
  switch (filter) {
    case ResampleFilter::kBox:
      return 0.5;
    case ResampleFilter::kBilinear:
    case ResampleFilter::kHamming:
      return 1;
    case ResampleFilter::kBicubic:
      return 2;
    case ResampleFilter::kLanczos:
      return 3;
  }
  return 0;
}

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double filter_at(ResampleFilter filter, double x) {
  const double distance = std::abs(x);
  switch (filter) {
    case ResampleFilter::kBox:
      return x > -0.5 && x <= 0.5 ? 1 : 0;
    case ResampleFilter::kBilinear:
      return distance < 1 ? 1 - distance : 0;
    case ResampleFilter::kHamming:
      // The constants are single precision numbers in Pillow.
      if (distance == 0) return 1;
      if (distance >= 1) return 0;
      return sinc(distance) * (0.54f + 0.46f * std::cos(distance * std::numbers::pi));
    case ResampleFilter::kBicubic:
      if (distance < 1) return (1.5 * distance - 2.5) * distance * distance + 1;
      if (distance < 2) return (((distance - 5) * distance + 8) * distance - 4) * -0.5;
      return 0;
    case ResampleFilter::kLanczos:
      return -3 <= x && x < 3 ? sinc(x) * sinc(x / 3) : 0;
  }
  return 0;
}

ResampleWeights make_weights(int64_t in, int64_t out, ResampleFilter filter) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double stretch = std::max(scale, 1.0);
  const double support = support_of(filter) * stretch, inverse = 1 / stretch;
  ResampleWeights result;
  result.taps = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
  result.first.resize(static_cast<size_t>(out));
  result.count.resize(static_cast<size_t>(out));
  result.weight.assign(static_cast<size_t>(out * result.taps), 0);
  std::vector<double> line(static_cast<size_t>(result.taps));
  for (int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const int64_t first = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
    const int64_t last = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), in);
    const auto count = static_cast<size_t>(last - first);
    double sum = 0;
    for (size_t j = 0; j < count; ++j)
      sum += line[j] =
          filter_at(filter, (static_cast<double>(j) + static_cast<double>(first) - center + 0.5) * inverse);
    int32_t* weight = result.weight.data() + i * result.taps;
    for (size_t j = 0; j < count; ++j) {
      const double share = (sum != 0 ? line[j] / sum : line[j]) * (1 << kWeightBits);
      weight[j] = static_cast<int32_t>(share < 0 ? share - 0.5 : share + 0.5);
    }
    result.first[static_cast<size_t>(i)] = static_cast<int32_t>(first);
    result.count[static_cast<size_t>(i)] = static_cast<int32_t>(count);
  }
  return result;
}

// Sixteen bytes are what every machine has registers for. Bytes become integers by being interleaved with zeros, since
// that is one instruction each time, which conversions of vectors are not; all of it supposes little-endian words.
typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Shorts8 __attribute__((vector_size(16)));
typedef int32_t Ints4 __attribute__((vector_size(16)));
typedef uint64_t Longs2 __attribute__((vector_size(16)));

Shorts8 low_bytes(Bytes16 v) {
  return (Shorts8)__builtin_shufflevector(v, Bytes16{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
Shorts8 high_bytes(Bytes16 v) {
  return (Shorts8)__builtin_shufflevector(v, Bytes16{}, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}
Ints4 low_shorts(Shorts8 v) {
  return (Ints4)__builtin_shufflevector(v, Shorts8{}, 0, 8, 1, 9, 2, 10, 3, 11);
}
Ints4 high_shorts(Shorts8 v) {
  return (Ints4)__builtin_shufflevector(v, Shorts8{}, 4, 12, 5, 13, 6, 14, 7, 15);
}

uint8_t clip_weighted(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

Ints4 clip_weighted(Ints4 sum) {
  sum >>= kWeightBits;
  sum = sum < 0 ? Ints4{} : sum;
  return sum > 255 ? Ints4{} + 255 : sum;
}

// Sums to bytes.
Bytes16 packed(Ints4 a, Ints4 b, Ints4 c, Ints4 d) {
  const auto first = (Shorts8)clip_weighted(a), second = (Shorts8)clip_weighted(b);
  const auto third = (Shorts8)clip_weighted(c), fourth = (Shorts8)clip_weighted(d);
  const auto low = (Bytes16)__builtin_shufflevector(first, second, 0, 2, 4, 6, 8, 10, 12, 14);
  const auto high = (Bytes16)__builtin_shufflevector(third, fourth, 0, 2, 4, 6, 8, 10, 12, 14);
  return __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

Shorts8 two_pixels(const uint8_t* a, const uint8_t* b) {
  uint32_t low = 0, high = 0;
  std::memcpy(&low, a, 4);
  std::memcpy(&high, b, 4);
  return low_bytes((Bytes16)Longs2{low | static_cast<uint64_t>(high) << 32, 0});
}

// Two rows of three or four channels. Four bytes are read of each pixel, so one byte after the last must be readable.
template <int kChannels>
void rows_across(const uint8_t* a, const uint8_t* b, uint8_t* out_a, uint8_t* out_b, int64_t width,
                 const ResampleWeights& weights) {
  const int32_t* weight = weights.weight.data();
  for (int64_t x = 0; x < width; ++x, weight += weights.taps, out_a += kChannels, out_b += kChannels) {
    const int64_t offset = static_cast<int64_t>(weights.first[static_cast<size_t>(x)]) * kChannels;
    const uint8_t* from_a = a + offset;
    const uint8_t* from_b = b + offset;
    Ints4 sum_a = Ints4{} + kWeightHalf, sum_b = sum_a;
    const int32_t count = weights.count[static_cast<size_t>(x)];
    for (int32_t i = 0; i < count; ++i, from_a += kChannels, from_b += kChannels) {
      const Shorts8 pixels = two_pixels(from_a, from_b);
      sum_a += low_shorts(pixels) * weight[i];
      sum_b += high_shorts(pixels) * weight[i];
    }
    const auto pixels = (Longs2)packed(sum_a, sum_b, sum_a, sum_b);
    const auto pixel_a = static_cast<uint32_t>(pixels[0]), pixel_b = static_cast<uint32_t>(pixels[0] >> 32);
    // A fourth byte is written over by the next pixel; after the last one it would be a pixel of another row.
    const size_t bytes = x + 1 < width ? 4 : kChannels;
    if (bytes == 4) {
      std::memcpy(out_a, &pixel_a, 4);
      std::memcpy(out_b, &pixel_b, 4);
    } else {
      std::memcpy(out_a, &pixel_a, kChannels);
      std::memcpy(out_b, &pixel_b, kChannels);
    }
  }
}

void row_across(const uint8_t* in, uint8_t* out, int64_t width, int64_t channels, const ResampleWeights& weights) {
  for (int64_t x = 0; x < width; ++x) {
    const int32_t* weight = weights.weight.data() + x * weights.taps;
    const uint8_t* from = in + static_cast<int64_t>(weights.first[static_cast<size_t>(x)]) * channels;
    const int32_t count = weights.count[static_cast<size_t>(x)];
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = kWeightHalf;
      for (int32_t i = 0; i < count; ++i) sum += from[i * channels + c] * weight[i];
      out[x * channels + c] = clip_weighted(sum);
    }
  }
}

// Arguments are plain: clang 16 leaves constructors undefined that are called in a function with target_clones alone.
#ifdef __x86_64__
[[gnu::target_clones("avx2", "default")]]
#endif
void resample_row_pair(const uint8_t* a, const uint8_t* b, uint8_t* out_a, uint8_t* out_b, int64_t width,
                       int64_t channels, const ResampleWeights& weights) {
  if (channels == 3) {
    rows_across<3>(a, b, out_a, out_b, width, weights);
  } else if (channels == 4) {
    rows_across<4>(a, b, out_a, out_b, width, weights);
  } else {
    row_across(a, out_a, width, channels, weights);
    if (a != b) row_across(b, out_b, width, channels, weights);
  }
}

void resample_rows(const PixelRows& in, uint8_t* out, int64_t width, const ResampleWeights& weights) {
  const int64_t row = width * in.channels;
  std::vector<uint8_t> last;  // the last row, with the byte behind it that may be read
  for (int64_t y = 0; y < in.height; y += 2) {
    const int64_t other = std::min(y + 1, in.height - 1);
    const uint8_t* a = in.data + y * in.stride;
    const uint8_t* b = in.data + other * in.stride;
    if (other == in.height - 1 && in.channels == 3) {
      last.resize(static_cast<size_t>(in.width * 3 + 1));
      std::memcpy(last.data(), b, static_cast<size_t>(in.width * 3));
      if (a == b) a = last.data();
      b = last.data();
    }
    resample_row_pair(a, b, out + y * row, out + other * row, width, in.channels, weights);
  }
}

#ifdef __x86_64__
[[gnu::target_clones("avx2", "default")]]
#endif
// One new row out of `count` rows.
void resample_down(const uint8_t* in, int64_t stride, int32_t count, const int32_t* weight, uint8_t* out,
                   int64_t bytes) {
  int64_t x = 0;
  for (; x + 16 <= bytes; x += 16) {
    Ints4 a = Ints4{} + kWeightHalf, b = a, c = a, d = a;
    const uint8_t* from = in + x;
    for (int32_t i = 0; i < count; ++i, from += stride) {
      Bytes16 line;
      std::memcpy(&line, from, 16);
      const Shorts8 low = low_bytes(line), high = high_bytes(line);
      a += low_shorts(low) * weight[i];
      b += high_shorts(low) * weight[i];
      c += low_shorts(high) * weight[i];
      d += high_shorts(high) * weight[i];
    }
    const Bytes16 line = packed(a, b, c, d);
    std::memcpy(out + x, &line, 16);
  }
  for (; x < bytes; ++x) {
    int32_t sum = kWeightHalf;
    for (int32_t i = 0; i < count; ++i) sum += in[i * stride + x] * weight[i];
    out[x] = clip_weighted(sum);
  }
}

void resample_columns(const PixelRows& in, uint8_t* out, int64_t height, const ResampleWeights& weights) {
  const int64_t bytes = in.width * in.channels;
  for (int64_t y = 0; y < height; ++y) {
    const auto i = static_cast<size_t>(y);
    resample_down(in.data + weights.first[i] * in.stride, in.stride, weights.count[i],
                  weights.weight.data() + y * weights.taps, out + y * bytes, bytes);
  }
}

// A buffer that a thread keeps, so that an image costs no pages.
uint8_t* scratch(size_t bytes) {
  thread_local std::vector<uint8_t> buffer;
  if (buffer.size() < bytes) buffer.resize(bytes);
  return buffer.data();
}

}  // namespace

std::shared_ptr<const ResampleWeights> resample_weights(int64_t in, int64_t out, ResampleFilter filter) {
  struct Entry {
    int64_t in = 0, out = 0;
    ResampleFilter filter = ResampleFilter::kBox;
    std::shared_ptr<const ResampleWeights> weights;
  };
  thread_local std::array<Entry, 32> cache;
  const auto place = static_cast<size_t>(in * 31 + out * 7 + static_cast<int64_t>(filter)) % cache.size();
  Entry& entry = cache[place];
  if (!entry.weights || entry.in != in || entry.out != out || entry.filter != filter)
    entry = {in, out, filter, std::make_shared<const ResampleWeights>(make_weights(in, out, filter))};
  return entry.weights;
}

void resample(const PixelRows& in, uint8_t* out, int64_t height, int64_t width, ResampleFilter filter) {
  const bool across = width != in.width, down = height != in.height;
  const auto bytes = [&](int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns * in.channels); };
  if (!across && !down) {
    for (int64_t y = 0; y < height; ++y)
      std::memcpy(out + y * width * in.channels, in.data + y * in.stride, bytes(1, width));
  } else if (!down) {
    resample_rows(in, out, width, *resample_weights(in.width, width, filter));
  } else if (!across) {
    resample_columns(in, out, height, *resample_weights(in.height, height, filter));
  } else if (height < in.height && 2 * (in.width - width) < in.height - height) {
    // Which pass comes first is part of the numbers, as bytes are rounded in between. This is Pillow's choice since 13;
    // before it, rows were always first.
    uint8_t* shorter = scratch(bytes(height, in.width));
    resample_columns(in, shorter, height, *resample_weights(in.height, height, filter));
    resample_rows({shorter, height, in.width, in.channels, in.width * in.channels}, out, width,
                  *resample_weights(in.width, width, filter));
  } else {
    uint8_t* narrower = scratch(bytes(in.height, width));
    resample_rows(in, narrower, width, *resample_weights(in.width, width, filter));
    resample_columns({narrower, in.height, width, in.channels, width * in.channels}, out, height,
                     *resample_weights(in.height, height, filter));
  }
}

void resample_nearest(const PixelRows& in, uint8_t* out, int64_t height, int64_t width) {
  // Positions are added up, as Pillow does, and not multiplied: the rounding is part of the result.
  const auto positions = [](int64_t from, int64_t to) {
    std::vector<int64_t> result(static_cast<size_t>(to));
    const double step = static_cast<double>(from) / static_cast<double>(to);
    double at = step * 0.5;
    for (auto& position : result) {
      position = std::min(static_cast<int64_t>(at), from - 1);
      at += step;
    }
    return result;
  };
  const auto columns = positions(in.width, width), rows = positions(in.height, height);
  const auto bytes = static_cast<size_t>(in.channels);
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = in.data + rows[static_cast<size_t>(y)] * in.stride;
    for (int64_t x = 0; x < width; ++x, out += bytes)
      std::memcpy(out, row + columns[static_cast<size_t>(x)] * in.channels, bytes);
  }
}

}  // namespace levin::transforms::detail
