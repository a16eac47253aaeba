#include "levin/trainer/callbacks/batch_norm.h"

#include <torch/nn/modules/batchnorm.h>

#include "levin/strategies/sync_batchnorm.h"

namespace levin::detail {
namespace {

template <class Layer>
std::optional<BatchNormParts> parts_of(torch::nn::Module& module) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (!layer) return {};
  return BatchNormParts{&layer->options.momentum(), layer->running_mean, layer->running_var,
                        layer->num_batches_tracked};
}

}  // namespace

std::optional<BatchNormParts> as_batch_norm(torch::nn::Module& module) {
  if (auto* sync = dynamic_cast<SyncBatchNormImpl*>(&module))
    return BatchNormParts{&sync->momentum(), sync->running_mean, sync->running_var, sync->num_batches_tracked};
  if (auto parts = parts_of<torch::nn::BatchNorm1dImpl>(module)) return parts;
  if (auto parts = parts_of<torch::nn::BatchNorm2dImpl>(module)) return parts;
  return parts_of<torch::nn::BatchNorm3dImpl>(module);
}

}  // namespace levin::detail
