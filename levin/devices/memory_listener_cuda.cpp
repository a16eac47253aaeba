// What CUDA's caching allocator tells of itself.
#include <mutex>
#include <shared_mutex>

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "levin/core/error.h"
#include "levin/devices/memory_listener.h"

namespace levin::detail {
namespace {

using c10::CachingDeviceAllocator::TraceEntry;

/// The allocator keeps what is attached for ever, so one of each kind is, and forwards.
struct Forward {
  std::shared_mutex mutex;
  MemoryListener* listener = nullptr;
};

Forward& forward() {
  static auto* one = new Forward;
  return *one;
}

void attach_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
      auto& to = forward();
      const std::shared_lock lock(to.mutex);
      if (!to.listener) return;
      const c10::Device device(c10::DeviceType::CUDA, entry.device_);
      if (entry.action_ == TraceEntry::Action::ALLOC)
        to.listener->allocated(device, entry.addr_, static_cast<int64_t>(entry.size_));
      else if (entry.action_ == TraceEntry::Action::FREE_COMPLETED)
        to.listener->freed(device, entry.addr_);
    });
    c10::cuda::CUDACachingAllocator::attachOutOfMemoryObserver(
        [](int64_t device, size_t bytes, size_t /*total*/, size_t free) {
          // It may ask the allocator in turn, and that tells the tracker above.
          MemoryListener* listener = nullptr;
          {
            auto& to = forward();
            const std::shared_lock lock(to.mutex);
            listener = to.listener;
          }
          if (listener)
            listener->out_of_memory(c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)),
                                    static_cast<int64_t>(bytes), static_cast<int64_t>(free));
        });
  });
}

}  // namespace

void set_cuda_memory_listener(MemoryListener* listener) {
  if (listener) attach_once();
  auto& to = forward();
  const std::unique_lock lock(to.mutex);
  LEVIN_CHECK(!listener || !to.listener, "[memory] the memory of CUDA has a listener already");
  to.listener = listener;
}

std::vector<MemorySegment> cuda_memory_segments() {
  std::vector<MemorySegment> segments;
  const auto bytes = [](size_t count) { return static_cast<int64_t>(count); };
  const auto info = c10::cuda::CUDACachingAllocator::get()->snapshot({0, 0}, /*include_traces=*/false);
  for (const auto& each : info.segments) {
    MemorySegment segment{.device = each.device,
                          .address = each.address,
                          .bytes = bytes(each.total_size),
                          .requested = bytes(each.requested_size),
                          .allocated = bytes(each.allocated_size),
                          .active = bytes(each.active_size),
                          .stream = reinterpret_cast<uint64_t>(each.stream),
                          .is_large = each.is_large,
                          .is_expandable = each.is_expandable};
    auto at = segment.address;
    for (const auto& block : each.blocks) {
      segment.blocks.push_back({at, bytes(block.size), bytes(block.requested_size), block.allocated, block.active});
      at += block.size;
    }
    segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace levin::detail
