#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/images/image_resample_launch.h"

namespace levin::kernels::detail {
namespace {

constexpr int kSide = 16;  // a block makes kSide x kSide pixels, one each thread
constexpr int kThreads = kSide * kSide;
constexpr int kBits = 32 - 8 - 2;
constexpr int kMostTableBytes = 40 << 10;  // weights of a block; beyond that they are worked out at each use

__device__ void put(uint8_t& out, int byte, float, float) {
  out = static_cast<uint8_t>(byte);
}
// torchvision's three steps, each rounded: joined multiplications and additions would differ from the CPU.
__device__ float normalized(int byte, float mean, float std) {
  return __fdiv_rn(__fsub_rn(__fmul_rn(static_cast<float>(byte), static_cast<float>(1.0 / 255)), mean), std);
}
__device__ void put(float& out, int byte, float mean, float std) {
  out = normalized(byte, mean, std);
}
__device__ void put(__half& out, int byte, float mean, float std) {
  out = __float2half_rn(normalized(byte, mean, std));
}
__device__ void put(__nv_bfloat16& out, int byte, float mean, float std) {
  out = __float2bfloat16_rn(normalized(byte, mean, std));
}

// The weights of one side, in double and rounded at every step like on the CPU: a joined multiplication and addition
// could move a weight by one.
struct Side {
  int in, out;
  bool bicubic;
  double scale, support, inverse;

  __device__ Side(int from, int to, bool cubic) : in(from), out(to), bicubic(cubic) {
    scale = __ddiv_rn(static_cast<double>(from), static_cast<double>(to));
    const double stretch = fmax(scale, 1.0);
    support = cubic ? __dmul_rn(2.0, stretch) : stretch;
    inverse = __ddiv_rn(1.0, stretch);
  }
  __device__ double center(int at) const { return __dmul_rn(static_cast<double>(at) + 0.5, scale); }
  __device__ int first(int at) const {
    if (in == out) return at;
    const int begin = static_cast<int>(__dadd_rn(__dadd_rn(center(at), -support), 0.5));
    return begin > 0 ? begin : 0;
  }
  __device__ int end(int at) const {
    if (in == out) return at + 1;
    const int last = static_cast<int>(__dadd_rn(__dadd_rn(center(at), support), 0.5));
    return last < in ? last : in;
  }
  __device__ double share(double middle, int from) const {
    const double d = fabs(__dmul_rn(__dadd_rn(__dadd_rn(static_cast<double>(from), -middle), 0.5), inverse));
    if (!bicubic) return d < 1 ? __dadd_rn(1.0, -d) : 0.0;
    if (d < 1) return __dadd_rn(__dmul_rn(__dmul_rn(__dadd_rn(__dmul_rn(1.5, d), -2.5), d), d), 1.0);
    if (d < 2) return __dmul_rn(__dadd_rn(__dmul_rn(__dadd_rn(__dmul_rn(__dadd_rn(d, -5.0), d), 8.0), d), -4.0), -0.5);
    return 0;
  }
  __device__ double sum(int at) const {
    const double middle = center(at);
    double total = 0;
    for (int from = first(at), last = end(at); from < last; ++from) total = __dadd_rn(total, share(middle, from));
    return total;
  }
  __device__ int weight(int at, int from, double total) const {
    if (in == out) return 1 << kBits;
    double part = share(center(at), from);
    if (total != 0) part = __ddiv_rn(part, total);
    part = __dmul_rn(part, static_cast<double>(1 << kBits));
    return static_cast<int>(__dadd_rn(part, part < 0 ? -0.5 : 0.5));
  }
};

// The lines of a tile along one side: which pixels each is made of.
struct Lines {
  int first[kSide];
  int end[kSide];
  double sum[kSide];
};

__device__ int clip(int sum) {
  const int byte = sum >> kBits;
  return byte < 0 ? 0 : byte > 255 ? 255 : byte;
}

template <class T, int kChannels>
__global__ void __launch_bounds__(kThreads) resample_kernel(const ResampleLaunch launch, const int room) {
  extern __shared__ int table[];  // [2, kSide, room]
  __shared__ Lines lines[2];      // of x and of y
  __shared__ uint32_t between[kSide][kSide + 1];
  const ResampleEntry entry = launch.entries[blockIdx.z];
  const int thread = threadIdx.x, tx = thread % kSide, ty = thread / kSide;
  const int x0 = blockIdx.x * kSide, y0 = blockIdx.y * kSide;
  const Side across(entry.in_width, entry.resized_width, launch.bicubic);
  const Side down(entry.in_height, entry.resized_height, launch.bicubic);
  // What a mirrored tile shows goes the other way; `base` is the smaller end in both cases.
  const int base_x = (entry.flip_x ? launch.width - x0 - kSide : x0) + entry.left;
  const int base_y = (entry.flip_y ? launch.height - y0 - kSide : y0) + entry.top;
  if (thread < 2 * kSide) {
    const int which = thread / kSide, line = thread % kSide;
    const Side& side = which == 0 ? across : down;
    const int at = (which == 0 ? base_x : base_y) + line;
    int first = 0, end = 0;
    double sum = 1;
    if (at >= 0 && at < side.out) {
      first = side.first(at);
      end = side.end(at);
      if (side.in != side.out) sum = side.sum(at);
      if (end - first <= room)
        for (int from = first; from < end; ++from)
          table[(which * kSide + line) * room + from - first] = side.weight(at, from, sum);
    }
    lines[which].first[line] = first;
    lines[which].end[line] = end;
    lines[which].sum[line] = sum;
  }
  __syncthreads();
  const auto weight = [&](int which, int line, int from) {
    const int first = lines[which].first[line];
    if (lines[which].end[line] - first <= room) return table[(which * kSide + line) * room + from - first];
    return which == 0 ? across.weight(base_x + line, from, lines[0].sum[line])
                      : down.weight(base_y + line, from, lines[1].sum[line]);
  };
  // Pillow's choice of what comes first; the other side comes second.
  const bool columns_first = entry.resized_height != entry.in_height && entry.resized_width != entry.in_width &&
                             entry.resized_height < entry.in_height &&
                             2 * (static_cast<int64_t>(entry.in_width) - entry.resized_width) <
                                 static_cast<int64_t>(entry.in_height) - entry.resized_height;
  const int one = columns_first ? 1 : 0, two = 1 - one;
  int begin = 0x7fffffff, end = 0;  // pixels of the second side that the tile needs
  for (int line = 0; line < kSide; ++line)
    if (lines[two].end[line] > lines[two].first[line]) {
      begin = min(begin, lines[two].first[line]);
      end = max(end, lines[two].end[line]);
    }
  const int line_x = entry.flip_x ? kSide - 1 - tx : tx, line_y = entry.flip_y ? kSide - 1 - ty : ty;
  const int own_one = columns_first ? line_y : line_x, own_two = columns_first ? line_x : line_y;
  int sums[kChannels];
#pragma unroll
  for (int c = 0; c < kChannels; ++c) sums[c] = 1 << (kBits - 1);
  for (int chunk = begin; chunk < end; chunk += kSide) {
    {
      // The first pass of this chunk. Neighbouring threads read neighbouring columns.
      const int line = columns_first ? ty : tx, second = chunk + (columns_first ? tx : ty);
      int parts[kChannels];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) parts[c] = 1 << (kBits - 1);
      if (second < end) {
        const uint8_t* fixed = entry.origin + second * (columns_first ? entry.column : entry.row);
        const int64_t step = columns_first ? entry.row : entry.column;
        for (int from = lines[one].first[line]; from < lines[one].end[line]; ++from) {
          const int share = weight(one, line, from);
          const uint8_t* pixel = fixed + from * step;
#pragma unroll
          for (int c = 0; c < kChannels; ++c) parts[c] += pixel[c * entry.channel] * share;
        }
      }
      uint32_t packed = 0;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) packed |= static_cast<uint32_t>(clip(parts[c])) << (8 * c);
      between[line][second - chunk] = packed;
    }
    __syncthreads();
    const int from = max(lines[two].first[own_two], chunk), to = min(lines[two].end[own_two], chunk + kSide);
    for (int second = from; second < to; ++second) {
      const int share = weight(two, own_two, second);
      const uint32_t packed = between[own_one][second - chunk];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) sums[c] += static_cast<int>(packed >> (8 * c) & 255) * share;
    }
    __syncthreads();
  }
  const int x = x0 + tx, y = y0 + ty;
  if (x >= launch.width || y >= launch.height) return;
  const bool inside = lines[0].end[line_x] > lines[0].first[line_x] && lines[1].end[line_y] > lines[1].first[line_y];
  const int64_t plane = static_cast<int64_t>(launch.height) * launch.width;
  const int64_t place = static_cast<int64_t>(y) * launch.width + x;
  T* out = static_cast<T*>(launch.out) + blockIdx.z * plane * kChannels;
#pragma unroll
  for (int c = 0; c < kChannels; ++c)
    put(out[launch.channels_last ? place * kChannels + c : c * plane + place], inside ? clip(sums[c]) : launch.fill[c],
        launch.mean[c], launch.std[c]);
}

template <class T>
void resample(const ResampleLaunch& launch, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((launch.width + kSide - 1) / kSide),
                  static_cast<unsigned>((launch.height + kSide - 1) / kSide), static_cast<unsigned>(launch.batch));
  constexpr int kPerTap = 2 * kSide * static_cast<int>(sizeof(int));
  const int room = launch.taps * kPerTap <= kMostTableBytes ? launch.taps : kMostTableBytes / kPerTap;
  const auto bytes = static_cast<size_t>(room) * kPerTap;
  if (launch.channels == 1)
    resample_kernel<T, 1><<<grid, kThreads, bytes, stream>>>(launch, room);
  else
    resample_kernel<T, 3><<<grid, kThreads, bytes, stream>>>(launch, room);
}

}  // namespace

int launch_resample_images(const ResampleLaunch& launch, CUstream_st* stream) {
  switch (launch.type) {
    case ResampleType::kByte:
      resample<uint8_t>(launch, stream);
      break;
    case ResampleType::kFloat:
      resample<float>(launch, stream);
      break;
    case ResampleType::kHalf:
      resample<__half>(launch, stream);
      break;
    case ResampleType::kBFloat16:
      resample<__nv_bfloat16>(launch, stream);
      break;
  }
  return static_cast<int>(cudaGetLastError());
}

}  // namespace levin::kernels::detail
