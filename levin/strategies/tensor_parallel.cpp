#include "levin/strategies/tensor_parallel.h"

#include "levin/core/error.h"
#include "levin/strategies/ddp.h"

namespace levin {
namespace {

ModelParallelOptions options_of(const TensorParallelOptions& options) {
  LEVIN_CHECK(options.size >= 0, "[tensor_parallel] size ", options.size, " must be 1 or more, or 0 for all ranks");
  ModelParallelOptions all;
  all.mesh = options.size == 0 ? ParallelSizes{.tp = -1} : ParallelSizes{.dp_replicate = -1, .tp = options.size};
  all.sequence_parallel = options.sequence_parallel;
  all.plan = options.plan;
  return all;
}

}  // namespace

TensorStrategy::TensorStrategy(const TensorParallelOptions& options)
    : ModelParallelStrategy("tensor_parallel", options_of(options)) {}

std::unique_ptr<Strategy> strategy_of(const TensorParallelOptions& options) {
  return std::make_unique<TensorStrategy>(options);
}

std::vector<NamedStrategy> TensorStrategy::names() {
  return {named_strategy("tensor_parallel", TensorParallelOptions{}),
          named_strategy("tensor_parallel_2", TensorParallelOptions{.size = 2}),
          named_strategy("tensor_parallel_4", TensorParallelOptions{.size = 4}),
          named_strategy("tensor_parallel_8", TensorParallelOptions{.size = 8})};
}

std::unique_ptr<Strategy> TensorStrategy::make_inner(int) const {
  return std::make_unique<DdpStrategy>(DdpOptions{});
}

}  // namespace levin
