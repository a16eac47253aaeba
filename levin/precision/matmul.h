#pragma once

#include <string>
#include <string_view>

#include <c10/core/Device.h>

namespace levin {

/// How float32 matrix products are computed on the GPU: "highest" (float32, the default), "high" (TF32), "medium"
/// (bf16). The same setting as torch.set_float32_matmul_precision; global to the process. An unknown word is an Error.
void set_float32_matmul_precision(std::string_view word);
std::string float32_matmul_precision();

/// Says once, when it is so, that tensor cores stay idle because float32 products run at "highest".
void hint_idle_tensor_cores(c10::Device device);

}  // namespace levin
