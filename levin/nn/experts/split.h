#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/distributed/collective.h"
#include "levin/nn/tensor/split.h"

namespace torch::nn {
class Module;
}

namespace levin {

/// Expert parallelism: each rank of a group has some of the experts of every layer, and tokens travel to them.
struct ExpertParallelOptions {
  /// Ranks that share the experts; 0: all ranks there are.
  int size = 0;
};

/// A module whose experts are spread over ranks. Ranks see different batches.
struct ExpertSplit {
  std::shared_ptr<Collective> ranks;
  /// Weights of experts, of which this rank has some (`slice` of the first dimension). Everything else is whole on
  /// every rank. Their gradients are those of the tokens of all ranks of the group, divided by their number: averaged
  /// over the ranks that have the same experts they are what other gradients are when averaged over all ranks.
  std::vector<TensorSplit::Parameter> parameters;

  /// By identity; null for what is not split.
  const TensorSplit::Parameter* find(const at::Tensor& parameter) const;
};

/// Leaves this rank's experts in the nn::Experts of a module. `batch` are the ranks whose tokens are one batch for the
/// balance of the load; null: those of the group. Every rank must call, with the same module. A module without experts,
/// or with fewer than ranks, is an Error, and nothing is changed then. `prepare` is called with each parameter of
/// experts, all of them, before the next one is touched. Layers that are split over ranks of tensor parallelism are
/// split again: slices are of what is here.
///
///     auto split = levin::split_experts(*model, {.size = 4}, mesh.shared_group("ep"), mesh.shared_group("loss"));
std::shared_ptr<ExpertSplit> split_experts(torch::nn::Module& module, const ExpertParallelOptions& options,
                                           const std::shared_ptr<Collective>& ranks,
                                           std::shared_ptr<Collective> batch = nullptr,
                                           SplitValues values = SplitValues::kTaken,
                                           const std::function<void(const at::Tensor&)>& prepare = {});

}  // namespace levin
