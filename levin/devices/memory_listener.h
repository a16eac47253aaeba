#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Device.h>

namespace levin {

/// Hears of the memory of tensors, from whatever thread allocates it and under a lock of the allocator: it may neither
/// allocate tensors nor wait for other threads.
class MemoryListener {
 public:
  virtual ~MemoryListener() = default;
  virtual void allocated(c10::Device device, uint64_t address, int64_t bytes) = 0;
  virtual void freed(c10::Device device, uint64_t address) = 0;
  /// Before the error, outside of the lock: there is no room for `bytes`. `free` is what the device has left, -1
  /// where that is not known.
  virtual void out_of_memory(c10::Device, int64_t /*bytes*/, int64_t /*free*/) {}
};

/// A listener to the memory of a kind of device, while it lives: of tensors of the CPU, or of CUDA's caching allocator.
/// There is one listener of each kind at a time.
class [[nodiscard]] ListenToMemory {
 public:
  ListenToMemory(c10::DeviceType type, MemoryListener& listener);
  ~ListenToMemory();
  ListenToMemory(const ListenToMemory&) = delete;
  ListenToMemory& operator=(const ListenToMemory&) = delete;

 private:
  c10::DeviceType type_;
};

/// A part of a device that the caching allocator has, and what it is cut into.
struct MemorySegment {
  struct Block {
    uint64_t address = 0;
    int64_t bytes = 0, requested = 0;
    bool allocated = false;
    /// Still used by a stream, or allocated.
    bool active = false;
  };
  c10::DeviceIndex device = 0;
  uint64_t address = 0;
  int64_t bytes = 0, requested = 0, allocated = 0, active = 0;
  uint64_t stream = 0;
  bool is_large = false, is_expandable = false;
  std::vector<Block> blocks = {};
};

namespace detail {

/// Null: nobody listens any more. Those of CUDA have twins in no_cuda.cpp.
void set_cuda_memory_listener(MemoryListener* listener);
void set_cpu_memory_listener(MemoryListener* listener);
std::vector<MemorySegment> cuda_memory_segments();

}  // namespace detail

}  // namespace levin
