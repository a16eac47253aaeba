#pragma once

#include <cstdint>

/// Activations of the kernels, one row each. Every enum and every switch over them is made of these rows; their
/// functions are in activation.cpp (operators of torch) and activation_device.cuh. A row without them does not compile.
#define LEVIN_ACTIVATIONS(row) \
  row(kGelu) /* exact */       \
      row(kGeluTanh) row(kRelu) row(kSilu)

#define LEVIN_ACTIVATION_NAME(name) name,

namespace levin::kernels {

/// kGelu is exact, kGeluTanh its approximation.
enum class Activation { LEVIN_ACTIVATIONS(LEVIN_ACTIVATION_NAME) };

namespace detail {

/// Activations, numbered alike, and silu(first) * second.
enum class ActivationKind : uint8_t { LEVIN_ACTIVATIONS(LEVIN_ACTIVATION_NAME) kGatedSilu };

/// What follows a product of few rows: nothing, an activation, or silu(product) * other product.
enum class RowActivation : uint8_t { kNone, LEVIN_ACTIVATIONS(LEVIN_ACTIVATION_NAME) kGatedSilu };

/// Whether it is an activation of one number, as an operator's argument may not be.
constexpr bool is_activation(int64_t kind) {
  return kind >= 0 && kind < static_cast<int64_t>(ActivationKind::kGatedSilu);
}

}  // namespace detail

}  // namespace levin::kernels

#undef LEVIN_ACTIVATION_NAME
