#include "levin/precision/matmul.h"

#include <ATen/Context.h>

#include "levin/core/log.h"
#include "levin/core/words.h"
#include "levin/devices/accelerator.h"

namespace levin {

void set_float32_matmul_precision(std::string_view word) {
  static const std::vector<std::string> known{"highest", "high", "medium"};
  for (const auto& name : known)
    if (name == word) return at::globalContext().setFloat32MatmulPrecision(name);
  fail_unknown("precision", "float32_matmul_precision", word, known);
}

std::string float32_matmul_precision() {
  switch (at::globalContext().float32MatmulPrecision()) {
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
    default:
      return "highest";
  }
}

void hint_idle_tensor_cores(c10::Device device) {
  if (!device.is_cuda() || float32_matmul_precision() != "highest") return;
  const auto info = accelerator_of(device).info(device);
  if (!info.has_tf32) return;
  warn_once(info.name +
            " has tensor cores that float32 matrix products leave idle; levin::set_float32_matmul_precision(\"high\") "
            "uses them at a small loss of precision");
}

}  // namespace levin
