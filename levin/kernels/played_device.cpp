#include "levin/kernels/played_device.h"

#include <atomic>

#include <ATen/autocast_mode.h>

namespace levin::kernels {
namespace {

std::atomic<c10::DeviceType> device_played{c10::kCPU};
thread_local const PlayedAutocast* autocast_played = nullptr;

}  // namespace

c10::DeviceType played_device() {
  return device_played;
}
void set_played_device(c10::DeviceType device) {
  device_played = device;
}
c10::DeviceType kernel_device(const Tensor& tensor) {
  return tensor.is_meta() ? played_device() : tensor.device().type();
}

const PlayedAutocast* played_autocast() {
  return autocast_played;
}
void set_played_autocast(const PlayedAutocast* autocast) {
  autocast_played = autocast;
}

namespace detail {

bool runs_fused(const Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kHalf && dtype != at::kBFloat16) return false;
  if (tensor.is_meta()) return played_device() == c10::kCUDA;
  return tensor.is_cuda() && has_cuda_kernels();
}

bool runs_hopper_kernels(const Tensor& tensor) {
  return tensor.is_meta() || is_hopper(tensor.device());
}

std::optional<at::ScalarType> autocast_dtype(const Tensor& tensor) {
  if (tensor.is_meta()) return autocast_played ? std::optional(autocast_played->dtype) : std::nullopt;
  const auto device = tensor.device().type();
  if (!at::autocast::is_autocast_available(device) || !at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

Tensor autocast_to(const Tensor& tensor, at::ScalarType dtype) {
  if (tensor.is_meta()) return autocast_played ? autocast_played->cast(tensor) : tensor;
  return at::autocast::cached_cast(dtype, tensor, tensor.device().type());
}

}  // namespace detail
}  // namespace levin::kernels
