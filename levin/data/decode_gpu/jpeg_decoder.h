#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "levin/io/images/image_options.h"
#include "levin/io/images/jpeg_head.h"

namespace levin::detail {

using at::Tensor;

/// A JPEG file and the part of it that is wanted, in the stored image.
struct JpegJob {
  std::span<const std::byte> file;
  JpegHead head;
  ImageRegion region;
};

/// Decodes JPEG files into the memory of a device. Used by several threads at once.
class GpuJpegDecoder {
 public:
  virtual ~GpuJpegDecoder() = default;
  /// For people: "nvJPEG (hardware)".
  virtual std::string name() const = 0;
  /// Whether decode() takes a file. Others are for the CPU: progressive and arithmetic ones, CMYK, 12 bits, files that
  /// end too early.
  virtual bool takes(std::span<const std::byte> file, const JpegHead& head) const = 0;

  /// The parts of jobs [first, first + count) as uint8 [channels, height, width] on the device. What `use` gives to the
  /// current stream finds the pixels there; afterwards the memory is used again.
  using Use = std::function<void(size_t first, std::span<const Tensor> pixels)>;
  /// Calls `use` for some jobs at a time, in order. False when a file is broken after all; which one, the CPU finds
  /// out.
  virtual bool decode(std::span<const JpegJob> jobs, int channels, const Use& use) = 0;

  /// Files decoded so far.
  int64_t decoded() const { return decoded_.load(std::memory_order_relaxed); }

 protected:
  std::atomic<int64_t> decoded_ = 0;
};

/// Whether the pixels of a file can be put together as libjpeg does: one Huffman-coded scan of 8 bits that is there to
/// its end, grey or with chroma of 4:4:4, 4:2:2, 4:4:0 or 4:2:0.
bool is_common_jpeg(const JpegHead& head);

/// nvJPEG on a CUDA device: by its hardware where there is one, and with CUDA what that has no time for. Null, and
/// `why`, without a GPU, the library or CUDA in this build. In nvjpeg_cuda.cpp, or no_cuda.cpp where there is no CUDA.
std::unique_ptr<GpuJpegDecoder> open_gpu_jpeg_decoder(c10::Device device, std::string& why);

/// The one decoder of a device that all of its loaders use, as long as one of them lives: opening it takes long, and
/// each would have memory of its own.
std::shared_ptr<GpuJpegDecoder> shared_jpeg_decoder(c10::Device device, std::string& why);

/// The decoder of a loader, which counts its own files, with LoaderOptions::decode = `mode` whose batches go to
/// `device`; null: the CPU decodes. `unplanned`: why the data cannot be decoded there, or empty; with "gpu" that is an
/// Error.
std::shared_ptr<GpuJpegDecoder> choose_jpeg_decoder(const std::string& mode, c10::Device device,
                                                    const std::string& unplanned);

}  // namespace levin::detail
