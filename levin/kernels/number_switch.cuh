#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "levin/kernels/number_type.h"

/// From a dtype that is known when a program runs to a type.
namespace levin::kernels::detail {

template <class T>
struct NumberOf {
  using type = T;
};

/// Calls f(NumberOf<T>()) for float and the numbers of 16 bits; false for others.
template <class F>
bool with_number(NumberType type, F&& f) {
  switch (type) {
    case NumberType::kFloat:
      f(NumberOf<float>());
      return true;
    case NumberType::kHalf:
      f(NumberOf<__half>());
      return true;
    case NumberType::kBFloat16:
      f(NumberOf<__nv_bfloat16>());
      return true;
    case NumberType::kNone:
    case NumberType::kDouble:
      return false;
  }
  return false;
}

/// The same for kernels that are launched: a cudaError_t.
template <class F>
int launch_for_number(NumberType type, F&& f) {
  return static_cast<int>(with_number(type, f) ? cudaGetLastError() : cudaErrorInvalidValue);
}

}  // namespace levin::kernels::detail
