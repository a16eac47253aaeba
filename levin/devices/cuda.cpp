#include <ATen/Context.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"

namespace levin {
namespace {

class Cuda final : public Accelerator {
 public:
  std::string name() const override { return "cuda"; }

  int device_count() const override {
    static const int count = c10::cuda::device_count();
    return count;
  }

  std::string why_unavailable() const override { return "no usable NVIDIA GPU or driver was found"; }

  void set_device(c10::Device device) const override { c10::cuda::set_device(device.index()); }

  void synchronize(c10::Device device) const override {
    const auto before = c10::cuda::current_device();
    c10::cuda::set_device(device.index());
    c10::cuda::device_synchronize();
    c10::cuda::set_device(before);
  }

  MemoryStats memory(c10::Device device) const override {
    // The allocator has no statistics of a device before its first allocation there.
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return {};
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device.index());
    return {.allocated = stats.allocated_bytes[0].current,
            .peak_allocated = stats.allocated_bytes[0].peak,
            .reserved = stats.reserved_bytes[0].current,
            .peak_reserved = stats.reserved_bytes[0].peak};
  }

  void reset_peak_memory(c10::Device device) const override {
    if (c10::cuda::CUDACachingAllocator::get()->initialized())
      c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
  }

  void empty_cache(c10::Device) const override {
    if (c10::cuda::CUDACachingAllocator::get()->initialized()) c10::cuda::CUDACachingAllocator::emptyCache();
  }

  void limit_memory(c10::Device device, int64_t bytes) const override {
    const auto total = info(device).total_memory;
    LEVIN_CHECK(bytes > 0 && bytes <= total, "[cuda.limit_memory] ", bytes, " bytes are not in 1 to the ", total,
                " of ", device.str());
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(static_cast<double>(bytes) / static_cast<double>(total),
                                                       device.index());
  }

  int64_t memory_limit(c10::Device device) const override {
    const auto total = info(device).total_memory;
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return total;
    return static_cast<int64_t>(c10::cuda::CUDACachingAllocator::getMemoryFraction(device.index()) *
                                static_cast<double>(total));
  }

  DeviceInfo info(c10::Device device) const override {
    const auto* properties = at::cuda::getDeviceProperties(device.index());
    return {.name = properties->name,
            .total_memory = static_cast<int64_t>(properties->totalGlobalMem),
            .has_tf32 = properties->major >= 8};
  }

  void set_sync_warnings(bool on) const override {
    c10::cuda::warning_state().set_sync_debug_mode(on ? c10::cuda::SyncDebugMode::L_WARN
                                                      : c10::cuda::SyncDebugMode::L_DISABLED);
  }

  at::Tensor rng_state(c10::Device device) const override {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
    std::lock_guard lock(generator.mutex());
    return generator.get_state();
  }

  void set_rng_state(c10::Device device, const at::Tensor& state) const override {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(device.index());
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
};

}  // namespace

const Accelerator& detail::cuda_accelerator() {
  static const Cuda cuda;
  return cuda;
}

}  // namespace levin
