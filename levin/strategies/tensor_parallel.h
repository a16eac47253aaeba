#pragma once

#include <memory>
#include <vector>

#include "levin/strategies/model_parallel.h"

namespace levin {

/// Each group of `size` neighbouring ranks has one model together, a part of every large layer on each
/// (levin/nn/tensor); groups have copies, of which gradients are averaged as under "ddp". Ranks of a group see the same
/// batches. The mesh is dp_replicate x tp.
///
///     Fabric fabric({.strategy = TensorParallelOptions{.size = 2}, .devices = 8});   // 4 copies of 2 ranks
class TensorStrategy : public ModelParallelStrategy {
 public:
  explicit TensorStrategy(const TensorParallelOptions& options);
  static std::vector<NamedStrategy> names();

 protected:
  std::unique_ptr<Strategy> make_inner(int ranks) const override;
  /// Checkpoints are as one process writes them.
  bool saves_full() const override { return true; }
};

}  // namespace levin
