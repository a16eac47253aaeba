#include "levin/devices/accelerator.h"

#include <array>

#include "levin/core/error.h"
#include "levin/core/words.h"

namespace levin {

const Accelerator& accelerator(const std::string& name) {
  static const std::vector<std::string> known{"auto", "cpu", "cuda", "gpu"};
  const Accelerator& cuda = detail::cuda_accelerator();
  if (name == "cpu") return detail::cpu_accelerator();
  if (name == "auto") return cuda.device_count() > 0 ? cuda : detail::cpu_accelerator();
  if (name != "cuda" && name != "gpu") fail_unknown("fabric", "accelerator", name, known);
  LEVIN_CHECK(cuda.device_count() > 0, "[fabric] accelerator \"", name, "\" is not available: ", cuda.why_unavailable(),
              " (available: cpu)");
  return cuda;
}

const Accelerator& accelerator_of(c10::Device device) {
  return device.is_cuda() ? detail::cuda_accelerator() : detail::cpu_accelerator();
}

}  // namespace levin
