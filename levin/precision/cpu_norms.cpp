#include "levin/precision/cpu_norms.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace levin::detail {

using at::Tensor;

namespace {

using MaybeTensor = std::optional<Tensor>;

bool is_float(const MaybeTensor& tensor) {
  return tensor && tensor->defined() && tensor->scalar_type() == at::kFloat;
}

MaybeTensor widened(const MaybeTensor& weight, bool wanted) {
  const bool narrow = weight && weight->defined() && at::isReducedFloatingType(weight->scalar_type());
  return wanted && narrow ? weight->to(at::kFloat) : weight;
}

using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

Tensor layer_norm(const Tensor& x, c10::SymIntArrayRef shape, const MaybeTensor& weight, const MaybeTensor& bias,
                  double eps, bool cudnn) {
  const NoAutocast below(c10::DispatchKey::AutocastCPU);
  const bool wide = is_float(x);
  return at::layer_norm_symint(x, shape, widened(weight, wide), widened(bias, wide), eps, cudnn);
}

Tensor group_norm(const Tensor& x, int64_t groups, const MaybeTensor& weight, const MaybeTensor& bias, double eps,
                  bool cudnn) {
  const NoAutocast below(c10::DispatchKey::AutocastCPU);
  const bool wide = is_float(x);
  return at::group_norm(x, groups, widened(weight, wide), widened(bias, wide), eps, cudnn);
}

Tensor batch_norm(const Tensor& x, const MaybeTensor& weight, const MaybeTensor& bias, const MaybeTensor& mean,
                  const MaybeTensor& variance, bool training, double momentum, double eps, bool cudnn) {
  const NoAutocast below(c10::DispatchKey::AutocastCPU);
  const bool wide = is_float(x) || is_float(mean) || is_float(variance);
  return at::batch_norm(x, widened(weight, wide), widened(bias, wide), mean, variance, training, momentum, eps, cudnn);
}

}  // namespace

void upcast_weights_of_cpu_norms() {
  // For the life of the process: whoever is under autocast then may be on any thread.
  static const auto& library = *[] {
    auto* made = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastCPU, __FILE__, __LINE__);
    made->impl("layer_norm", layer_norm);
    made->impl("group_norm", group_norm);
    made->impl("batch_norm", batch_norm);
    return made;
  }();
  (void)library;
}

}  // namespace levin::detail
