#pragma once

#include <optional>
#include <span>

#include <ATen/core/Tensor.h>

#include "levin/kernels/fused_step/step_numbers.h"

/// Whole steps of Adam and SGD over lists of tensors, in one pass over memory, of parameters, gradients and state whose
/// dtypes differ: on CUDA one kernel for dozens of tensors, on the CPU all threads over all tensors together.
namespace levin::kernels {

using at::Tensor;

/// What a loss scaler says of one step, on the device of the tensors: gradients are still multiplied by `scale`, and
/// nothing changes where `found_inf` is not zero. The host does not look at either on CUDA.
struct StepScale {
  std::optional<Tensor> scale = {};
  std::optional<Tensor> found_inf = {};
};

/// How a step on CUDA runs that a graph replays.
template <class Numbers>
struct StepReplay {
  /// Memory of the device that the kernel reads its numbers from when it runs. Null: the ones given by value.
  const Numbers* refreshed = nullptr;
  /// Rounds as torch's fused kernels do (at::_fused_adam_, at::_fused_sgd_), so that eager steps and replays mix.
  bool as_torch = false;
};

/// Parallel lists, all on one device; tensors of one index are laid out alike and have as many elements. Tensors
/// without elements are passed over. Parameters are float, double, half or bfloat16, gradients of the parameter's
/// width or a lesser one; averages are of the parameter's dtype, float or bfloat16. Arithmetic is in float, of double
/// parameters in double.
struct AdamTensors {
  std::span<const Tensor> params;
  std::span<const Tensor> grads;
  std::span<const Tensor> averages;
  std::span<const Tensor> squares;
  /// The largest averages of squares so far: with amsgrad only.
  std::span<const Tensor> largest = {};
  /// Steps made, this one included: one float each, on the parameter's device.
  std::span<const Tensor> steps;
  /// None, or for each parameter a half or bfloat16 tensor that gets its new value in the same pass (an undefined one
  /// gets none): the weights that a model computes with, of a master kept elsewhere.
  std::span<const Tensor> copies = {};
};

/// One step. Gradients are not written, not even under a scale.
void fused_adam(const AdamTensors& tensors, const AdamNumbers& numbers, const StepScale& scale = {},
                const StepReplay<AdamNumbers>& replay = {});

/// As AdamTensors; buffers are none without momentum.
struct SgdTensors {
  std::span<const Tensor> params;
  std::span<const Tensor> grads;
  std::span<const Tensor> buffers = {};
  std::span<const Tensor> copies = {};
};

void fused_sgd(const SgdTensors& tensors, const SgdNumbers& numbers, const StepScale& scale = {},
               const StepReplay<SgdNumbers>& replay = {});

/// Loads the kernels of all fused steps, once: that cannot be done while a graph is captured. Nothing without CUDA.
void load_step_kernels(c10::Device device);

/// Whether a parameter of dtype `param` may have a gradient of dtype `grad` here.
bool takes_grad(at::ScalarType param, at::ScalarType grad);

}  // namespace levin::kernels
