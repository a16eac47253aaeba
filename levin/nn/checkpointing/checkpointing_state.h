#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/MT19937RNGEngine.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "levin/kernels/fp8/fp8_layers.h"

namespace torch::nn {
class Module;
}

namespace levin::detail {

using at::Tensor;

/// States of the default generators of some devices.
class RngStates {
 public:
  /// Of now; the CPU is always among them, devices without a generator never.
  explicit RngStates(std::span<const c10::Device> devices);
  void apply() const;
  /// Those besides the CPU.
  std::vector<c10::Device> others() const;

 private:
  /// The generator itself: its state as a tensor takes microseconds.
  struct Cpu {
    at::mt19937 engine;
    std::optional<float> next_float;
    std::optional<double> next_double;
  };
  Cpu cpu_;
  std::vector<std::pair<c10::Device, Tensor>> others_;
};

/// Autocast of every kind of device on this thread.
struct AutocastState {
  struct Entry {
    c10::DeviceType device;
    bool enabled;
    c10::ScalarType dtype;
  };
  std::vector<Entry> entries;
  bool cache = true;

  static AutocastState now();
  void apply() const;
};

/// What a forward depends on besides its arguments and its module.
struct ForwardState {
  std::optional<RngStates> rng;
  AutocastState autocast = AutocastState::now();
  kernels::detail::Fp8ContextPtr fp8 = kernels::detail::fp8_context();
  /// Torch's default dtype, and that of a forward in a true precision.
  c10::ScalarType default_dtype, made_dtype;

  /// Of now; `rng_devices` empty: random numbers are left alone.
  explicit ForwardState(std::span<const c10::Device> rng_devices);
};

/// Sets a state for its life, then puts back what was there.
class ForwardStateScope {
 public:
  explicit ForwardStateScope(const ForwardState& state);
  ~ForwardStateScope();
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  std::optional<RngStates> rng_;
  AutocastState autocast_;
  kernels::detail::Fp8ContextScope fp8_;
  c10::ScalarType default_dtype_, made_dtype_;
};

/// Buffers of a unit, which its forward may change, such as running statistics. All of them: batch normalization
/// changes its statistics behind autograd's back, and so does whoever writes through data(), so that no version tells.
std::vector<Tensor> buffers_of(const torch::nn::Module& module);

/// Puts values and versions of tensors back at its end.
class UnchangedScope {
 public:
  explicit UnchangedScope(const std::vector<Tensor>& tensors);
  ~UnchangedScope();
  UnchangedScope(const UnchangedScope&) = delete;
  UnchangedScope& operator=(const UnchangedScope&) = delete;

 private:
  struct Saved {
    Tensor tensor, value;
    int64_t version;
  };
  std::vector<Saved> saved_;
};

}  // namespace levin::detail
