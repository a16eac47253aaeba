#include "levin/devices/memory_listener.h"

#include "levin/core/error.h"

namespace levin {

ListenToMemory::ListenToMemory(c10::DeviceType type, MemoryListener& listener) : type_(type) {
  if (type == c10::DeviceType::CUDA)
    detail::set_cuda_memory_listener(&listener);
  else
    detail::set_cpu_memory_listener(&listener);
}

ListenToMemory::~ListenToMemory() {
  if (type_ == c10::DeviceType::CUDA)
    detail::set_cuda_memory_listener(nullptr);
  else
    detail::set_cpu_memory_listener(nullptr);
}

}  // namespace levin
