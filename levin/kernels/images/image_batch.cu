#include "levin/kernels/images/image_batch_launch.h"
#include "levin/kernels/number_switch.cuh"
#include "levin/kernels/numbers.cuh"

namespace levin::kernels::detail {
namespace {

constexpr int kThreads = 256;
constexpr int kPixels = 4;  // neighbours in a row that one thread makes, so that it can store them together

// torchvision's three steps, each rounded: joined multiplications and additions would differ from the CPU.
__device__ float normalized(uint8_t value, float mean, float std) {
  return __fdiv_rn(__fsub_rn(__fmul_rn(static_cast<float>(value), static_cast<float>(1.0 / 255)), mean), std);
}

template <class T>
struct alignas(sizeof(T) * kPixels) Pack {
  T values[kPixels];
};

template <class T, bool kChannelsLast>
__global__ void normalize_kernel(const NormalizeLaunch launch, const bool packs) {
  const int image = blockIdx.y;
  int top = 0, left = 0, flip = 0;
  if (launch.placements != nullptr) {
    top = launch.placements[image * 3];
    left = launch.placements[image * 3 + 1];
    flip = launch.placements[image * 3 + 2];
  }
  const int groups = (launch.width + kPixels - 1) / kPixels;
  const int64_t plane = static_cast<int64_t>(launch.height) * launch.width;
  const uint8_t* in = launch.in + image * launch.in_image;
  T* out = static_cast<T*>(launch.out) + image * plane * launch.channels;
  for (int group = blockIdx.x * blockDim.x + threadIdx.x; group < groups * launch.height;
       group += gridDim.x * blockDim.x) {
    const int y = group / groups, x = (group - y * groups) * kPixels, row = y + top;
    const bool row_inside = row >= 0 && row < launch.in_height;
    int64_t from[kPixels];
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      const int column = (flip ? launch.width - 1 - (x + i) : x + i) + left;
      from[i] = row_inside && column >= 0 && column < launch.in_width && x + i < launch.width
                    ? row * launch.in_row + column * launch.in_column
                    : -1;
    }
    if (kChannelsLast) {
      T* place = out + (static_cast<int64_t>(y) * launch.width + x) * launch.channels;
      if (packs && launch.channels == 3) {
        T numbers[3 * kPixels];
#pragma unroll
        for (int i = 0; i < kPixels; ++i)
#pragma unroll
          for (int c = 0; c < 3; ++c)
            assign(numbers[i * 3 + c], normalized(from[i] < 0 ? launch.fill : in[from[i] + c * launch.in_channel],
                                                  launch.mean[c], launch.std[c]));
#pragma unroll
        for (int k = 0; k < 3; ++k) {
          Pack<T> pack;
#pragma unroll
          for (int i = 0; i < kPixels; ++i) pack.values[i] = numbers[k * kPixels + i];
          reinterpret_cast<Pack<T>*>(place)[k] = pack;
        }
      } else {
        for (int i = 0; i < kPixels && x + i < launch.width; ++i)
          for (int c = 0; c < launch.channels; ++c)
            assign(place[i * launch.channels + c],
                   normalized(from[i] < 0 ? launch.fill : in[from[i] + c * launch.in_channel], launch.mean[c],
                              launch.std[c]));
      }
    } else {
      for (int c = 0; c < launch.channels; ++c) {
        T* place = out + c * plane + static_cast<int64_t>(y) * launch.width + x;
        Pack<T> pack;
#pragma unroll
        for (int i = 0; i < kPixels; ++i)
          assign(pack.values[i], normalized(from[i] < 0 ? launch.fill : in[from[i] + c * launch.in_channel],
                                            launch.mean[c], launch.std[c]));
        if (packs) {
          *reinterpret_cast<Pack<T>*>(place) = pack;
        } else {
#pragma unroll
          for (int i = 0; i < kPixels; ++i)
            if (x + i < launch.width) place[i] = pack.values[i];
        }
      }
    }
  }
}

template <class T>
void normalize(const NormalizeLaunch& launch, cudaStream_t stream) {
  const int64_t groups = static_cast<int64_t>((launch.width + kPixels - 1) / kPixels) * launch.height;
  const int64_t blocks = (groups + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(blocks < 1024 ? blocks : 1024), static_cast<unsigned>(launch.batch));
  // Rows of whole groups begin at multiples of a pack.
  const bool packs = launch.width % kPixels == 0;
  if (launch.channels_last)
    normalize_kernel<T, true><<<grid, kThreads, 0, stream>>>(launch, packs);
  else
    normalize_kernel<T, false><<<grid, kThreads, 0, stream>>>(launch, packs);
}

template <class T>
__global__ void erase_kernel(const EraseLaunch launch) {
  const int image = blockIdx.y;
  const int32_t* box = launch.boxes + image * 4;
  const int top = box[0], left = box[1], height = box[2], width = box[3];
  T* images = static_cast<T*>(launch.images) + image * launch.image;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < height * width; i += gridDim.x * blockDim.x) {
    const int y = i / width, x = i - y * width;
    T* place = images + (top + y) * launch.row + (left + x) * launch.column;
    for (int c = 0; c < launch.channels; ++c) assign(place[c * launch.channel], launch.value[c]);
  }
}

}  // namespace

int launch_normalize_images(const NormalizeLaunch& launch, CUstream_st* stream) {
  return launch_for_number(launch.type,
                           [&](auto number) { normalize<typename decltype(number)::type>(launch, stream); });
}

int launch_erase_images(const EraseLaunch& launch, CUstream_st* stream) {
  const dim3 grid(16, static_cast<unsigned>(launch.batch));
  return launch_for_number(launch.type, [&](auto number) {
    erase_kernel<typename decltype(number)::type><<<grid, kThreads, 0, stream>>>(launch);
  });
}

}  // namespace levin::kernels::detail
