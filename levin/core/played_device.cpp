#include "levin/core/played_device.h"

#include <atomic>

namespace levin::detail {
namespace {

// Of the process, as backward runs on a thread of its own.
std::atomic<c10::DeviceType> device_played = c10::kCPU;

}  // namespace

c10::DeviceType played_device() {
  return device_played;
}

void set_played_device(c10::DeviceType device) {
  device_played = device;
}

c10::DeviceType kernel_device(const at::Tensor& tensor) {
  return tensor.is_meta() ? played_device() : tensor.device().type();
}

}  // namespace levin::detail
