#pragma once

#include <cstdint>

#include "levin/kernels/fused_step/adam_launch.h"

/// What the launches of fused kernels share, without a header of torch.
namespace levin::kernels::detail {

/// Bytes of one number.
constexpr int number_size(NumberType type) {
  return type == NumberType::kDouble ? 8 : type == NumberType::kFloat ? 4 : type == NumberType::kNone ? 0 : 2;
}

inline bool is_pack_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

}  // namespace levin::kernels::detail
