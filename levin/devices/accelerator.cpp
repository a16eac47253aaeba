#include "levin/devices/accelerator.h"

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {

c10::DeviceType accelerator_type(const std::string& name, int cuda_devices) {
  static const std::vector<std::string> known{"auto", "cpu", "cuda", "gpu"};
  if (name == "cpu") return c10::DeviceType::CPU;
  if (name == "auto") return cuda_devices > 0 ? c10::DeviceType::CUDA : c10::DeviceType::CPU;
  if (name != "cuda" && name != "gpu") fail_unknown("fabric", "accelerator", name, known);
  LEVIN_CHECK(cuda_devices > 0, "[fabric] accelerator \"", name,
              "\" is not available: ", detail::cuda_accelerator().why_unavailable(), " (available: cpu)");
  return c10::DeviceType::CUDA;
}

const Accelerator& accelerator(const std::string& name) {
  const auto type = accelerator_type(name, detail::cuda_accelerator().device_count());
  return type == c10::DeviceType::CPU ? detail::cpu_accelerator() : detail::cuda_accelerator();
}

const Accelerator& accelerator_of(c10::Device device) {
  return device.is_cuda() ? detail::cuda_accelerator() : detail::cpu_accelerator();
}

}  // namespace levin
