#include "levin/fabric/torch_calls.h"

#include <algorithm>
#include <mutex>
#include <unordered_set>

#include "levin/checkpoint/checkpoint.h"
#include "levin/checkpoint/module_state.h"
#include "levin/core/error.h"
#include "levin/fabric/fabric_core.h"
#include "levin/optim/clip.h"

namespace levin::detail {
namespace {

/// The Fabrics of this process. Torch's functions are free ones: nothing else leads from a parameter to its strategy.
struct Watched {
  std::mutex mutex;
  std::vector<std::weak_ptr<FabricCore>> cores;

  /// The first that is alive and of which `is` says yes; null: none.
  template <class F>
  std::shared_ptr<FabricCore> find(F&& is) {
    const std::lock_guard lock(mutex);
    for (const auto& weak : cores)
      if (auto core = weak.lock(); core && is(*core)) return core;
    return nullptr;
  }
};
Watched& watched() {
  static Watched all;
  return all;
}

bool is_plain(const FabricCore& core) {
  return !core.scaler && !core.strategy->shards();
}

}  // namespace

std::shared_ptr<FabricCore> owner_of(const std::vector<Tensor>& tensors, bool plain) {
  if (tensors.empty()) return nullptr;
  std::unordered_set<const c10::TensorImpl*> wanted;
  for (const auto& tensor : tensors) wanted.insert(tensor.unsafeGetTensorImpl());
  const auto has = [&](const std::vector<Tensor>& mine) {
    return std::any_of(mine.begin(), mine.end(),
                       [&](const Tensor& tensor) { return wanted.contains(tensor.unsafeGetTensorImpl()); });
  };
  return watched().find([&](const FabricCore& core) {
    if (!plain && is_plain(core)) return false;
    for (const auto& known : core.calls)
      if (const auto call = known.lock(); call && (has(call->module->parameters()) || has(call->module->buffers())))
        return true;
    return false;
  });
}

std::shared_ptr<FabricCore> core_with(const torch::optim::Optimizer& optimizer, Optimizer& outer) {
  return watched().find([&](const FabricCore& core) {
    for (const auto& [known, weak] : core.torch_optimizers)
      if (known == &optimizer)
        if (auto impl = weak.lock()) {
          outer = Optimizer(std::move(impl));
          return true;
        }
    return false;
  });
}

void watch_torch_calls(const std::shared_ptr<FabricCore>& core) {
  auto& all = watched();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.cores, [](const auto& known) { return known.expired(); });
  all.cores.push_back(core);
}

bool is_shard(const FabricCore& core, const Tensor& param) {
  auto* shards = core.strategy->shards();
  const auto* place = shards ? shards->find(param) : nullptr;
  return place && param.sizes() != at::IntArrayRef(place->sizes);
}

void check_no_copy_of_shards(const torch::nn::Module& module) {
  const auto mine = module.parameters();
  if (mine.empty()) return;
  const auto is_copy = [&](const FabricCore& core, const torch::nn::Module& other) {
    if (typeid(other) != typeid(module)) return false;
    const auto theirs = other.parameters();
    return theirs.size() == mine.size() &&
           std::any_of(theirs.begin(), theirs.end(), [&](const Tensor& param) { return is_shard(core, param); }) &&
           std::equal(mine.begin(), mine.end(), theirs.begin(),
                      [](const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes(); });
  };
  const auto core = watched().find([&](const FabricCore& one) {
    if (!one.strategy->shards()) return false;
    for (const auto& known : one.calls)
      if (const auto call = known.lock())
        for (const auto& other : call->module->modules())
          if (is_copy(one, *other)) return true;
    return false;
  });
  LEVIN_CHECK(!core, "[torch::save] this module has the shapes of one rank's shards under strategy \"",
              core->strategy->name(),
              "\": a copy that clone() made after fabric.setup; clone the module before setup, or save the one that "
              "setup returned");
}

double clip_grad_norm(const std::vector<Tensor>& params, double max_norm, double norm_type, bool error_if_nonfinite) {
  const auto core = owner_of(params, /*plain=*/false);
  if (!core) return kClipGradNorm(params, max_norm, norm_type, error_if_nonfinite);
  LEVIN_CHECK(!core->scaler, "[clip_grad_norm_] gradients are scaled in precision \"", core->plan.precision.name,
              "\"; write fabric.clip_gradients(optimizer, {.max_norm = ", max_norm, "})");
  const auto norm = core->strategy->grad_norm(params, norm_type);
  const auto value = norm.item<double>();
  LEVIN_CHECK(!error_if_nonfinite || std::isfinite(value), "[clip_grad_norm_] the norm of the gradients is ", value,
              "; look for inf or nan in the loss, or pass error_if_nonfinite = false");
  optim::clip_grads_with_norm(params, max_norm, norm);
  return value;
}

void clip_grad_value(const std::vector<Tensor>& params, double clip_value) {
  const auto core = owner_of(params, /*plain=*/false);
  LEVIN_CHECK(!core || !core->scaler, "[clip_grad_value_] gradients are scaled in precision \"",
              core->plan.precision.name, "\"; write fabric.clip_gradients(optimizer, {.clip_val = ", clip_value, "})");
  torch::nn::utils::clip_grad_value_(params, clip_value);
}

Tensor parameters_to_vector(const std::vector<Tensor>& params) {
  const auto core = owner_of(params, /*plain=*/false);
  const auto shard =
      std::find_if(params.begin(), params.end(), [&](const Tensor& param) { return core && is_shard(*core, param); });
  if (shard == params.end()) return kParametersToVector(params);
  LEVIN_CHECK(!at::GradMode::is_enabled() || !shard->requires_grad(),
              "[parameters_to_vector] parameters are shards under strategy \"", core->strategy->name(),
              "\", and the vector of the full ones has no gradient; write it under torch::NoGradGuard, or in a method "
              "of the module that runs by net.call(&Net::method)");
  StateDict state;
  for (size_t i = 0; i < params.size(); ++i) state[std::to_string(i)] = params[i];
  const auto full = full_state_dict(state, *core->strategy->shards(), {.rank0_only = false});
  std::vector<Tensor> parts;
  for (size_t i = 0; i < params.size(); ++i)
    parts.push_back(full.at(std::to_string(i)).to_tensor().reshape(-1).to(params[i].device()));
  return at::cat(parts);
}

void vector_to_parameters(const Tensor& vec, const std::vector<Tensor>& params) {
  const auto core = owner_of(params, /*plain=*/true);
  if (!core) return torch::nn::utils::vector_to_parameters(vec, params);
  auto* shards = core->strategy->shards();
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const auto& param : params) {
    const auto* place = shards ? shards->find(param) : nullptr;
    const std::vector<int64_t> sizes = place ? place->sizes : param.sizes().vec();
    const auto count = c10::multiply_integers(sizes);
    LEVIN_CHECK(count <= vec.numel() - begin, "[vector_to_parameters] the vector has ", vec.numel(),
                " elements, fewer than the full parameters together; torch::nn::utils::parameters_to_vector("
                "net->parameters()) has as many");
    const auto full = vec.slice(0, begin, begin + count).view(sizes);
    begin += count;
    if (!place || param.sizes() == at::IntArrayRef(sizes)) {
      param.copy_(full);
      continue;
    }
    LEVIN_CHECK(!place->slice, "[vector_to_parameters] strategy \"", core->strategy->name(),
                "\" splits parameters by other dimensions than rows; write fabric.load_raw(path, net)");
    param.copy_(narrow_rows(full, place->start, rows_of(param)).reshape(param.sizes()));
  }
}

}  // namespace levin::detail
