#include "levin/strategies/strategy.h"

#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/strategies/layout.h"

namespace levin {

// A strategy is made before anything is known of the run, and told its place by Fabric::launch. That is the one moment
// to refuse a number of ranks that it cannot serve.
void Strategy::connect(std::shared_ptr<Collective> group, c10::Device device) {
  LEVIN_CHECK(!traits_.one_process || group->size() == 1, "[strategy] \"", name(),
              "\" is for one process, and there are ", group->size(),
              "; \"ddp\" is the one that keeps a copy of the model in each");
  group_ = std::move(group);
  device_ = device;
  on_connect();
}

Collective& Strategy::group() const {
  LEVIN_CHECK(group_, "[strategy] \"", name(), "\" has not been connected; call launch() first");
  return *group_;
}

void Strategy::sync_batchnorm() {
  LEVIN_CHECK(traits_.syncs_batchnorm, "[", name(),
              "] sync_batchnorm is not possible with this strategy; leave it out, or use strategy \"ddp\"");
  sync_batchnorm_ = true;
}

std::string Strategy::why_not_captured() const {
  return traits_.one_process ? std::string() : "it does not say that its part of a step can be captured";
}

std::string Strategy::why_group_not_captured() const {
  return group().is_stream_work() ? std::string() : "its ranks communicate over Gloo, which is work of the host";
}

StateLayout Strategy::layout_over(int ranks) const {
  return {.ranks = ranks};
}

StateLayout Strategy::layout() const {
  return layout_over(group().size());
}

Tensor Strategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  // Every rank holds full gradients here, so no communication is needed; one norm per tensor, then the norm of those.
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
