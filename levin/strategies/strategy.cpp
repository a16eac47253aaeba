#include "levin/strategies/strategy.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"

namespace levin {

void run_backward(std::span<ModuleSync* const> modules, const Tensor& loss, const std::function<void()>& backward) {
  try {
    for (auto* module : modules) module->before_backward(loss);
    backward();
  } catch (const std::exception& error) {
    std::exception_ptr better;  // every module must come to rest, also when one of them knows a better line
    for (auto* module : modules) try {
        module->backward_failed(error);
      } catch (const std::exception&) {
        if (!better) better = std::current_exception();
      }
    if (better) std::rethrow_exception(better);
    throw;
  }
  for (auto* module : modules) module->after_backward();
}

void Strategy::sync_batchnorm() {
  levin::detail::fail("[" + name() +
                      "] sync_batchnorm is not possible with this strategy; leave it out, or use strategy \"ddp\"");
}

Tensor Strategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  // Every rank holds whole gradients here, so no communication is needed; one norm per tensor, then the norm of those.
  at::NoGradGuard no_grad;
  std::vector<Tensor> grads;
  for (const auto& param : params)
    if (param.grad().defined()) grads.push_back(param.grad());
  if (grads.empty()) return at::zeros({}, at::device(device()));
  auto norms = at::_foreach_norm(grads, norm_type);
  for (auto& norm : norms) norm = norm.to(norms[0].device(), at::promote_types(norm.scalar_type(), at::kFloat));
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

}  // namespace levin
