#include "levin/fabric/finite_watch.h"

#include <cmath>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "levin/core/error.h"
#include "levin/fabric/fabric.h"
#include "levin/optim/step/finite.h"

namespace levin {
namespace {

std::vector<at::Tensor> gradients_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const auto& param : optimizer.all_params())
    if (param.grad().defined() && param.grad().numel() > 0) gradients.push_back(param.grad());
  return gradients;
}

/// The largest value of all, on the device: not finite where one of them is not.
at::Tensor largest_of(const at::Tensor& loss, const std::vector<at::Tensor>& gradients) {
  const at::NoGradGuard no_grad;
  auto all = loss.detach().to(at::kFloat).abs().max();
  for (const auto& norm : gradients.empty() ? std::vector<at::Tensor>() : at::_foreach_norm(gradients, INFINITY))
    all = all + norm.to(all.device(), at::kFloat) * 0;  // nan where that is nan or inf
  return all;
}

}  // namespace

FiniteWatch::FiniteWatch(Fabric& fabric) : fabric_(fabric), late_(&fabric) {}

bool FiniteWatch::found_bad(const at::Tensor& loss, const Optimizer& optimizer) {
  LEVIN_CHECK(loss.defined() && loss.numel() > 0, "[FiniteWatch] the loss is empty");
  const auto call = calls_++;
  const auto gradients = gradients_of(optimizer);
  if (!fabric_.device().is_cpu()) return note(late_.add(largest_of(loss, gradients), call));
  bool bad = !optim::all_finite({&loss, 1}) || !optim::all_finite(gradients);
  if (fabric_.world_size() > 1) {
    const auto all = fabric_.strategy().group().exchange("FiniteWatch", bad ? 1 : 0);
    for (const auto one : all) bad = bad || one != 0;
  }
  return note(bad ? std::optional(call) : std::nullopt);
}

bool FiniteWatch::found_bad_before_save() {
  return note(late_.finish());
}

bool FiniteWatch::note(std::optional<int64_t> bad) {
  if (!bad) return false;
  bad_step_ = *bad;
  late_ = detail::LateFlags(&fabric_);
  return true;
}

}  // namespace levin
