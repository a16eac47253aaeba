#include "levin/optim/step/plain_kernels.h"

#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "levin/core/parallel.h"

namespace levin::optim::detail {
namespace {

constexpr int64_t kGrain = 32768;

bool skips(const DeviceScale& scale) {
  return scale.found_inf && *scale.found_inf->const_data_ptr<float>() != 0;
}

// Calls body(tensor index, scalar_t tag) for each tensor, with the C++ type of the bucket's dtype.
template <class Body>
void each_tensor_of(Bucket& bucket, Body&& body) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, bucket.dtype, "levin::optim::plain", [&] {
    for (size_t i = 0; i < bucket.params.size(); ++i) body(i, scalar_t());
  });
}

template <class T>
T* data(const std::vector<Tensor>& list, size_t index) {
  return index < list.size() ? list[index].mutable_data_ptr<T>() : nullptr;
}

// Calls f(element, gradient) with the gradient divided by the scale, which is written back, as torch's kernels do.
template <class T, class F>
void each_element(const Tensor& grads, const DeviceScale& scale, bool maximize, F&& f) {
  using Math = at::opmath_type<T>;
  T* grad = grads.mutable_data_ptr<T>();
  const Math divisor = scale.scale ? static_cast<Math>(*scale.scale->const_data_ptr<float>()) : Math(1);
  const bool scaled = scale.scale.has_value();
  parallel_for(0, grads.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Math g = grad[i];
      if (scaled) {
        g /= divisor;
        grad[i] = static_cast<T>(g);
      }
      f(i, maximize ? -g : g);
    }
  });
}

}  // namespace

void plain_sgd(Bucket& bucket, const SgdNumbers& n, const DeviceScale& scale) {
  if (skips(scale)) return;
  each_tensor_of(bucket, [&]<class T>(size_t index, T) {
    using Math = at::opmath_type<T>;
    const auto lr = static_cast<Math>(n.lr), decay = static_cast<Math>(n.weight_decay),
               momentum = static_cast<Math>(n.momentum);
    const auto keep = n.is_first ? Math(0) : momentum, take = n.is_first ? Math(1) : static_cast<Math>(1 - n.dampening);
    T* param = data<T>(bucket.params, index);
    T* buffer = data<T>(bucket.slots[0], index);
    each_element<T>(bucket.grads[index], scale, n.maximize, [=, nesterov = n.nesterov](int64_t i, Math g) {
      const Math p = param[i];
      g += decay * p;
      if (buffer) {
        const Math b = keep * static_cast<Math>(buffer[i]) + take * g;
        buffer[i] = static_cast<T>(b);
        g = nesterov ? g + momentum * b : b;
      }
      param[i] = static_cast<T>(p - lr * g);
    });
  });
}

void plain_adam(Bucket& bucket, const AdamNumbers& n, const DeviceScale& scale) {
  if (skips(scale)) return;
  each_tensor_of(bucket, [&]<class T>(size_t index, T) {
    using Math = at::opmath_type<T>;
    const double step = *bucket.steps[index].const_data_ptr<float>();
    const auto step_size = static_cast<Math>(n.lr / (1 - std::pow(n.beta1, step)));
    const auto root = static_cast<Math>(std::sqrt(1 - std::pow(n.beta2, step)));
    const auto take1 = static_cast<Math>(1 - n.beta1), beta2 = static_cast<Math>(n.beta2),
               take2 = static_cast<Math>(1 - n.beta2);
    const auto eps = static_cast<Math>(n.eps);
    const auto shrink = static_cast<Math>(n.decoupled ? 1 - n.lr * n.weight_decay : 1);
    const auto decay = static_cast<Math>(n.decoupled ? 0 : n.weight_decay);
    T* param = data<T>(bucket.params, index);
    T* average = data<T>(bucket.slots[0], index);
    T* square = data<T>(bucket.slots[1], index);
    T* largest = n.amsgrad ? data<T>(bucket.slots[2], index) : nullptr;
    each_element<T>(bucket.grads[index], scale, n.maximize, [=](int64_t i, Math g) {
      const Math p = static_cast<Math>(param[i]) * shrink;
      g += decay * p;
      const Math m = static_cast<Math>(average[i]) + take1 * (g - static_cast<Math>(average[i]));
      Math v = beta2 * static_cast<Math>(square[i]) + take2 * g * g;
      average[i] = static_cast<T>(m);
      square[i] = static_cast<T>(v);
      if (largest) {
        v = std::max(static_cast<Math>(largest[i]), v);
        largest[i] = static_cast<T>(v);
      }
      param[i] = static_cast<T>(p - step_size * m / (std::sqrt(v) / root + eps));
    });
  });
}

void plain_adagrad(Bucket& bucket, const AdagradNumbers& n, const DeviceScale& scale) {
  if (skips(scale)) return;
  each_tensor_of(bucket, [&]<class T>(size_t index, T) {
    using Math = at::opmath_type<T>;
    const double step = *bucket.steps[index].const_data_ptr<float>();
    const auto rate = static_cast<Math>(n.lr / (1 + (step - 1) * n.lr_decay));
    const auto decay = static_cast<Math>(n.weight_decay), eps = static_cast<Math>(n.eps);
    T* param = data<T>(bucket.params, index);
    T* sum = data<T>(bucket.slots[0], index);
    each_element<T>(bucket.grads[index], scale, n.maximize, [=](int64_t i, Math g) {
      const Math p = param[i];
      g += decay * p;
      const Math s = static_cast<Math>(sum[i]) + g * g;
      sum[i] = static_cast<T>(s);
      param[i] = static_cast<T>(p - rate * g / (std::sqrt(s) + eps));
    });
  });
}

}  // namespace levin::optim::detail
