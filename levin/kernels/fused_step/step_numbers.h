#pragma once

#include <cmath>

/// The numbers of a fused step, without a header of torch: hyperparameters, and what one tensor's step makes of them.
/// Loops on the CPU and kernels on CUDA work them out by the same functions.
namespace levin::kernels {

/// Hyperparameters of Adam.
struct AdamNumbers {
  double lr, beta1, beta2, eps, weight_decay;
  bool amsgrad, maximize;
  /// Decay shrinks the parameter itself (AdamW), and is not added to the gradient.
  bool decoupled;
};

/// Hyperparameters of SGD.
struct SgdNumbers {
  double lr, momentum, dampening, weight_decay;
  bool nesterov, maximize;
  /// The momentum buffers are new: they take the gradient undamped.
  bool is_first;
};

namespace detail {

/// One tensor's step of Adam, in the dtype of the arithmetic.
template <class T>
struct AdamStep {
  T step_size, root_factor, take1, beta2, take2, eps, shrink, decay, grad_factor;
};

/// `steps` counts this one; gradients are still multiplied by `scale`.
template <class T>
#ifdef __CUDACC__
__host__ __device__
#endif
    AdamStep<T>
    adam_step(const AdamNumbers& n, double steps, double scale) {
  return {static_cast<T>(n.lr / (1 - pow(n.beta1, steps))),
          static_cast<T>(1 / sqrt(1 - pow(n.beta2, steps))),
          static_cast<T>(1 - n.beta1),
          static_cast<T>(n.beta2),
          static_cast<T>(1 - n.beta2),
          static_cast<T>(n.eps),
          static_cast<T>(n.decoupled ? 1 - n.lr * n.weight_decay : 1.0),
          static_cast<T>(n.decoupled ? 0.0 : n.weight_decay),
          static_cast<T>((n.maximize ? -1.0 : 1.0) / scale)};
}

/// One step of SGD: buffer = keep * buffer + take * grad, param -= lr * (direct * grad + rest * buffer).
template <class T>
struct SgdStep {
  T lr, keep, take, direct, rest, decay, grad_factor;
};

template <class T>
#ifdef __CUDACC__
__host__ __device__
#endif
    SgdStep<T>
    sgd_step(const SgdNumbers& n, double scale) {
  return {static_cast<T>(n.lr),
          static_cast<T>(n.is_first ? 0.0 : n.momentum),
          static_cast<T>(n.is_first ? 1.0 : 1 - n.dampening),
          static_cast<T>(n.nesterov ? 1.0 : 0.0),
          static_cast<T>(n.nesterov ? n.momentum : 1.0),
          static_cast<T>(n.weight_decay),
          static_cast<T>((n.maximize ? -1.0 : 1.0) / scale)};
}

}  // namespace detail
}  // namespace levin::kernels
