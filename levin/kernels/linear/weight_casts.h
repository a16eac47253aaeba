#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace levin::kernels {

using at::Tensor;

/// Which float weights the linear layers of a module cast in mixed precision. When a forward begins, those that the
/// last one asked for are cast by one call; autocast would cast each when its layer runs. CUDA only.
class WeightCasts {
 private:
  friend class WeightCastsScope;
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::mutex mutex_;
  std::vector<Weak> asked_;
};

/// One forward. While it lives, linear layers on this thread take cast weights from here. All weights must be in place
/// when it begins: not so where a strategy gathers them unit by unit.
class WeightCastsScope {
 public:
  WeightCastsScope(WeightCasts& casts, at::ScalarType dtype);
  ~WeightCastsScope();
  WeightCastsScope(const WeightCastsScope&) = delete;
  WeightCastsScope& operator=(const WeightCastsScope&) = delete;

  /// The cast of the weight, without a gradient; undefined where there is none, or the weight was changed since.
  Tensor find(const Tensor& weight, at::ScalarType dtype);

 private:
  struct Cast {
    Tensor cast;
    uint32_t version = 0;
    bool is_asked_for = false;
  };
  WeightCasts& casts_;
  at::ScalarType dtype_;
  WeightCastsScope* outer_;
  std::unordered_map<c10::TensorImpl*, Cast> weights_;
  std::vector<WeightCasts::Weak> asked_;
};

namespace detail {

/// As WeightCastsScope::find of the innermost scope of this thread; undefined where there is no scope.
Tensor find_cast(const Tensor& weight, at::ScalarType dtype);

}  // namespace detail
}  // namespace levin::kernels
