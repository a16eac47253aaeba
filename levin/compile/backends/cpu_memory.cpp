#include <cstring>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "levin/compile/backends/cpu_loops.h"

namespace levin::compile::detail {
namespace {

template <class From, class To>
void copy_in(To* to, const void* base, int64_t place, int64_t stride, int64_t n) {
  const auto* from = static_cast<const From*>(base) + place;
  for (int64_t i = 0; i < n; ++i) to[i] = static_cast<To>(from[i * stride]);
}

template <class To, class From>
void copy_out(void* base, int64_t place, int64_t stride, const From* from, int step, int64_t n) {
  auto* to = static_cast<To*>(base) + place;
  for (int64_t i = 0; i < n; ++i) to[i * stride] = static_cast<To>(from[i * step]);
}

}  // namespace

void read_run(void* to, const void* base, int64_t place, int64_t stride, int64_t n, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      if (stride == 1)
        std::memcpy(to, static_cast<const float*>(base) + place, static_cast<size_t>(n) * 4);
      else
        copy_in<float>(static_cast<float*>(to), base, place, stride, n);
      return;
    case at::kBFloat16:
      if (stride == 1)
        from_bfloat16(static_cast<float*>(to), static_cast<const uint16_t*>(base) + place, n);
      else
        copy_in<c10::BFloat16>(static_cast<float*>(to), base, place, stride, n);
      return;
    case at::kHalf:
      return copy_in<c10::Half>(static_cast<float*>(to), base, place, stride, n);
    case at::kDouble:
      return copy_in<double>(static_cast<double*>(to), base, place, stride, n);
    case at::kBool: {
      const auto* from = static_cast<const uint8_t*>(base) + place;
      for (int64_t i = 0; i < n; ++i) static_cast<int32_t*>(to)[i] = from[i * stride] ? -1 : 0;
      return;
    }
    case at::kByte:
      return copy_in<uint8_t>(static_cast<int64_t*>(to), base, place, stride, n);
    case at::kChar:
      return copy_in<int8_t>(static_cast<int64_t*>(to), base, place, stride, n);
    case at::kShort:
      return copy_in<int16_t>(static_cast<int64_t*>(to), base, place, stride, n);
    case at::kInt:
      return copy_in<int32_t>(static_cast<int64_t*>(to), base, place, stride, n);
    default:
      return copy_in<int64_t>(static_cast<int64_t*>(to), base, place, stride, n);
  }
}

void write_run(void* base, int64_t place, int64_t stride, const void* from, int step, int64_t n, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      if (stride == 1 && step == 1)
        std::memcpy(static_cast<float*>(base) + place, from, static_cast<size_t>(n) * 4);
      else
        copy_out<float>(base, place, stride, static_cast<const float*>(from), step, n);
      return;
    case at::kBFloat16:
      if (stride == 1 && step == 1)
        to_bfloat16(static_cast<uint16_t*>(base) + place, static_cast<const float*>(from), n);
      else
        copy_out<c10::BFloat16>(base, place, stride, static_cast<const float*>(from), step, n);
      return;
    case at::kHalf:
      return copy_out<c10::Half>(base, place, stride, static_cast<const float*>(from), step, n);
    case at::kDouble:
      return copy_out<double>(base, place, stride, static_cast<const double*>(from), step, n);
    case at::kBool: {
      auto* to = static_cast<uint8_t*>(base) + place;
      for (int64_t i = 0; i < n; ++i) to[i * stride] = static_cast<const int32_t*>(from)[i * step] != 0;
      return;
    }
    case at::kByte:
      return copy_out<uint8_t>(base, place, stride, static_cast<const int64_t*>(from), step, n);
    case at::kChar:
      return copy_out<int8_t>(base, place, stride, static_cast<const int64_t*>(from), step, n);
    case at::kShort:
      return copy_out<int16_t>(base, place, stride, static_cast<const int64_t*>(from), step, n);
    case at::kInt:
      return copy_out<int32_t>(base, place, stride, static_cast<const int64_t*>(from), step, n);
    default:
      return copy_out<int64_t>(base, place, stride, static_cast<const int64_t*>(from), step, n);
  }
}

}  // namespace levin::compile::detail
