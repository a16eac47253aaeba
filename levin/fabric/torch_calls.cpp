#include "levin/fabric/torch_calls.h"

#include <mutex>
#include <unordered_set>

#include <torch/nn/utils/clip_grad.h>

#include "levin/core/error.h"
#include "levin/fabric/fabric_core.h"
#include "levin/optim/clip.h"

namespace levin::detail {
namespace {

/// The Fabrics of this process. Torch's functions are free ones: nothing else leads from a parameter to its strategy.
struct Watched {
  std::mutex mutex;
  std::vector<std::weak_ptr<FabricCore>> cores;
};
Watched& watched() {
  static Watched all;
  return all;
}

/// The Fabric of a module that has one of the parameters; null: none.
std::shared_ptr<FabricCore> owner_of(const std::vector<Tensor>& params) {
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& param : params) wanted.insert(param.unsafeGetTensorImpl());
  auto& all = watched();
  const std::lock_guard lock(all.mutex);
  for (const auto& weak : all.cores)
    if (auto core = weak.lock(); core && (core->scaler || core->strategy->shards()))
      for (const auto& known : core->calls)
        if (const auto call = known.lock())
          for (const auto& param : call->module->parameters())
            if (wanted.contains(param.unsafeGetTensorImpl())) return core;
  return nullptr;
}

}  // namespace

void watch_torch_calls(const std::shared_ptr<FabricCore>& core) {
  auto& all = watched();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.cores, [](const auto& known) { return known.expired(); });
  all.cores.push_back(core);
}

double clip_grad_norm(const std::vector<Tensor>& params, double max_norm, double norm_type, bool error_if_nonfinite) {
  const auto core = owner_of(params);
  if (!core) return torch::nn::utils::clip_grad_norm_(params, max_norm, norm_type, error_if_nonfinite);
  LEVIN_CHECK(!core->scaler, "[clip_grad_norm_] gradients are scaled in precision \"", core->plan.precision.name,
              "\"; write fabric.clip_gradients(optimizer, {.max_norm = ", max_norm, "})");
  const auto norm = core->strategy->grad_norm(params, norm_type);
  const auto value = norm.item<double>();
  LEVIN_CHECK(!error_if_nonfinite || std::isfinite(value), "[clip_grad_norm_] the norm of the gradients is ", value,
              "; look for inf or nan in the loss, or pass error_if_nonfinite = false");
  optim::clip_grads_with_norm(params, max_norm, norm);
  return value;
}

void check_saves_full(const std::vector<Tensor>& params) {
  const auto core = owner_of(params);
  auto* shards = core ? core->strategy->shards() : nullptr;
  if (!shards) return;
  for (const auto& param : params)
    if (const auto* place = shards->find(param))
      LEVIN_CHECK(param.sizes() == at::IntArrayRef(place->sizes), "[torch::save] a parameter is ", param.sizes(),
                  ", this rank's shard of ", at::IntArrayRef(place->sizes), " under strategy \"",
                  core->strategy->name(),
                  "\"; write fabric.save(path, {{\"model\", net}}), with levin::SaveOptions{.full = true} for the full "
                  "weights");
}

}  // namespace levin::detail
