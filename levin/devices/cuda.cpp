#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include "levin/core/error.h"
#include "levin/devices/accelerator.h"
#include "levin/devices/graphs_rng.h"
#include "levin/devices/host_memory.h"

namespace levin {
namespace {

/// "cuda" without a number is the current device, as in torch.
c10::DeviceIndex index_of(c10::Device device) {
  return device.has_index() ? device.index() : c10::cuda::current_device();
}

class Cuda final : public Accelerator {
 public:
  std::string name() const override { return "cuda"; }

  int device_count() const override {
    static const int count = c10::cuda::device_count();
    return count;
  }

  std::string why_unavailable() const override { return "no usable NVIDIA GPU or driver was found"; }

  void set_device(c10::Device device) const override { c10::cuda::set_device(index_of(device)); }

  void synchronize(c10::Device device) const override {
    const auto before = c10::cuda::current_device();
    c10::cuda::set_device(index_of(device));
    c10::cuda::device_synchronize();
    c10::cuda::set_device(before);
  }

  MemoryStats memory(c10::Device device) const override {
    // The allocator has no statistics of a device before its first allocation there.
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return {};
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(index_of(device));
    return {.allocated = stats.allocated_bytes[0].current,
            .peak_allocated = stats.allocated_bytes[0].peak,
            .reserved = stats.reserved_bytes[0].current,
            .peak_reserved = stats.reserved_bytes[0].peak};
  }

  void reset_peak_memory(c10::Device device) const override {
    if (c10::cuda::CUDACachingAllocator::get()->initialized())
      c10::cuda::CUDACachingAllocator::resetPeakStats(index_of(device));
  }

  void empty_cache(c10::Device) const override {
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return;
    at::cuda::clearCublasWorkspaces();  // the next product by torch takes one again
    c10::cuda::CUDACachingAllocator::emptyCache();
  }

  void limit_memory(c10::Device device, int64_t bytes) const override {
    const auto total = info(device).total_memory;
    LEVIN_CHECK(bytes > 0 && bytes <= total, "[cuda.limit_memory] ", bytes, " bytes are not in 1 to the ", total,
                " of ", device.str());
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(static_cast<double>(bytes) / static_cast<double>(total),
                                                       index_of(device));
  }

  int64_t memory_limit(c10::Device device) const override {
    const auto total = info(device).total_memory;
    if (!c10::cuda::CUDACachingAllocator::get()->initialized()) return total;
    return static_cast<int64_t>(c10::cuda::CUDACachingAllocator::getMemoryFraction(index_of(device)) *
                                static_cast<double>(total));
  }

  DeviceInfo info(c10::Device device) const override {
    const auto* properties = at::cuda::getDeviceProperties(index_of(device));
    return {.name = properties->name,
            .total_memory = static_cast<int64_t>(properties->totalGlobalMem),
            .has_tf32 = properties->major >= 8,
            .has_fp8 = properties->major >= 9 || (properties->major == 8 && properties->minor >= 9)};
  }

  void set_sync_warnings(bool on) const override {
    c10::cuda::warning_state().set_sync_debug_mode(on ? c10::cuda::SyncDebugMode::L_WARN
                                                      : c10::cuda::SyncDebugMode::L_DISABLED);
  }

  at::Tensor rng_state(c10::Device device) const override {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(index_of(device));
    std::lock_guard lock(generator.mutex());
    if (auto captured = detail::captured_rng(device)) return *captured;
    return generator.get_state();
  }

  void set_rng_state(c10::Device device, const at::Tensor& state) const override {
    auto generator = at::cuda::detail::getDefaultCUDAGenerator(index_of(device));
    std::lock_guard lock(generator.mutex());
    if (detail::set_captured_rng(device, state)) return;
    generator.set_state(state);
  }
};

}  // namespace

const Accelerator& detail::cuda_accelerator() {
  static const Cuda cuda;
  return cuda;
}

at::Tensor page_locked(int64_t elements, c10::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto bytes = static_cast<size_t>(elements) * c10::elementSize(dtype);
  if (bytes == 0 || c10::cuda::device_count() == 0) return at::empty({elements}, options);
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // before it, torch calls no memory pinned
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  LEVIN_CHECK(memory != MAP_FAILED, "[host memory] ", bytes, " bytes cannot be had");
  ::madvise(memory, bytes, MADV_DONTFORK);  // a process that is forked must not make copies of what the device writes
  auto tensor = on_large_pages(at::from_blob(
      memory, {elements}, [bytes](void* pointer) { ::munmap(pointer, bytes); }, options));
  tensor.zero_();  // with all cores: locking makes the pages otherwise, with one
  if (::cudaHostRegister(memory, bytes, cudaHostRegisterPortable) != ::cudaSuccess) {
    (void)::cudaGetLastError();
    tensor.reset();
    return at::empty({elements}, options.pinned_memory(true));  // some containers allow only this
  }
  // What was locked is unlocked before it is unmapped.
  return at::from_blob(
      memory, {elements}, [tensor](void* pointer) { ::cudaHostUnregister(pointer); }, options);
}

}  // namespace levin
