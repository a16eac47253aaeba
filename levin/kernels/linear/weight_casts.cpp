#include "levin/kernels/linear/weight_casts.h"

#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include "levin/core/error.h"
#include "levin/kernels/linear/weight_casts_detail.h"
#include "levin/kernels/operators.h"

namespace levin::kernels {
namespace detail {
namespace {

void cast_on_cpu(at::TensorList to, at::TensorList from) {
  at::_foreach_copy_(to, from);
}
void cast_on_meta(at::TensorList, at::TensorList) {}

struct CastOps : Operators {
  Operator<decltype(cast_on_cpu)> cast =
      add("cast_weights_(Tensor(a!)[] to, Tensor[] from) -> ()", cast_on_meta, cast_on_cpu);

  CastOps() { register_weight_casts_cuda(cuda); }
};

}  // namespace

void cast_weights(at::TensorList to, at::TensorList from) {
  LEVIN_CHECK(to.size() == from.size(), "[cast_weights] there are ", from.size(), " weights and ", to.size(),
              " tensors to write to");
  if (to.empty()) return;
  const at::AutoDispatchBelowADInplaceOrView below;
  operators<CastOps>().cast.call(to, from);
}

}  // namespace detail

namespace {

thread_local WeightCastsScope* casts_here = nullptr;

/// As autocast: what is cached is a weight, not what was computed from one.
bool is_weight(const Tensor& tensor) {
  return tensor.is_cuda() && tensor.scalar_type() == at::kFloat && tensor.is_leaf() && tensor.requires_grad() &&
         !tensor.is_view() && !tensor.is_inference() && tensor.layout() == at::kStrided;
}

}  // namespace

WeightCastsScope::WeightCastsScope(WeightCasts& casts, at::ScalarType dtype)
    : casts_(casts), dtype_(dtype), outer_(std::exchange(casts_here, this)) {
  std::vector<Tensor> from, to;
  {
    const std::lock_guard lock(casts_.mutex_);
    for (const auto& weak : casts_.asked_)
      if (auto alive = weak.lock()) from.emplace_back(std::move(alive));
  }
  std::erase_if(from, [](const Tensor& weight) { return !is_weight(weight); });
  if (from.empty()) return;
  const at::NoGradGuard no_grad;
  for (auto& weight : from) {
    to.push_back(at::empty_like(weight, weight.options().dtype(dtype)));
    weights_[weight.unsafeGetTensorImpl()] = {to.back(), static_cast<uint32_t>(weight._version())};
  }
  detail::cast_weights(to, from);
}

WeightCastsScope::~WeightCastsScope() {
  casts_here = outer_;
  const std::lock_guard lock(casts_.mutex_);
  casts_.asked_ = std::move(asked_);
}

Tensor WeightCastsScope::find(const Tensor& weight, at::ScalarType dtype) {
  if (dtype != dtype_ || !is_weight(weight)) return {};
  auto& known = weights_[weight.unsafeGetTensorImpl()];
  if (!std::exchange(known.is_asked_for, true)) asked_.emplace_back(weight.getIntrusivePtr());
  return known.cast.defined() && known.version == static_cast<uint32_t>(weight._version()) ? known.cast : Tensor();
}

namespace detail {

Tensor find_cast(const Tensor& weight, at::ScalarType dtype) {
  return casts_here ? casts_here->find(weight, dtype) : Tensor();
}

}  // namespace detail
}  // namespace levin::kernels
