#pragma once

#include <memory>

#include <c10/core/ScalarType.h>

namespace levin::detail {

/// Whether LibTorch has matrix products, convolutions and attention in `dtype` (bfloat16 or float16) for this CPU. It
/// is LibTorch's own answer: bfloat16 takes AVX-512 or AVX-NE-CONVERT on x86 and FEAT_BF16 on Arm, and
/// ONEDNN_MAX_CPU_ISA counts on x86.
bool cpu_has_products_in(c10::ScalarType dtype);

/// While it lives, all threads compute matrix products, convolutions and attention in `dtype` on the CPU in float32 and
/// round the result, unless oneDNN is switched off. One lives as long as the process for every dtype that the CPU
/// lacks; tests make others. LibTorch's own way there is a loop without a library, up to 90 times as slow; and on Arm
/// it first asks oneDNN, which refuses, and then switches oneDNN off for the whole process, so that every later float32
/// convolution takes other kernels.
class WideProducts {
 public:
  explicit WideProducts(c10::ScalarType dtype);
  ~WideProducts();
  WideProducts(const WideProducts&) = delete;
  WideProducts& operator=(const WideProducts&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace levin::detail
