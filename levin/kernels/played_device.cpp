#include "levin/kernels/played_device.h"

#include <atomic>

namespace levin::kernels {
namespace {

std::atomic<c10::DeviceType> device_of_meta = c10::kCUDA;

}  // namespace

c10::DeviceType played_device() {
  return device_of_meta;
}

void set_played_device(c10::DeviceType device) {
  device_of_meta = device;
}

bool plays_cuda(const at::Tensor& tensor) {
  return tensor.is_cuda() || (tensor.is_meta() && played_device() == c10::kCUDA);
}

}  // namespace levin::kernels
