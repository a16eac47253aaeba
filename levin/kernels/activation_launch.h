#pragma once

#include <cstdint>

#include "levin/kernels/number_type.h"

struct CUstream_st;

namespace levin::kernels::detail {

/// As levin::kernels::Activation, and silu(first) * second.
enum class ActivationKind : uint8_t { kGelu, kGeluTanh, kRelu, kSilu, kGatedSilu };

/// Tensors of one dtype and `numel` elements. Forward: `first` (and `second` of kGatedSilu) to `out`. Backward: the
/// gradient `grad` to `out`, of kGatedSilu to `out` and `second_out`.
struct ActivationPointers {
  const void *first = nullptr, *second = nullptr, *grad = nullptr;
  void *out = nullptr, *second_out = nullptr;
  int64_t numel = 0;
  NumberType type = NumberType::kNone;
  /// All pointers are multiples of 16 bytes.
  bool aligned = false;
};

/// In activation.cu; returns a cudaError_t.
int launch_activation(const ActivationPointers& pointers, ActivationKind kind, bool backward, CUstream_st* stream);

}  // namespace levin::kernels::detail
