#include "levin/strategies/context_parallel.h"

#include "levin/core/error.h"
#include "levin/distributed/single.h"
#include "levin/strategies/layout.h"

namespace levin {

ContextStrategy::ContextStrategy(ContextParallelOptions options)
    : Strategy({.name = "context_parallel"}), options_(options), copies_(DdpOptions{}) {
  LEVIN_CHECK(options_.size >= 0, "[context_parallel] size ", options_.size, " must be 1 or more, or 0 for all ranks");
}

std::unique_ptr<Strategy> strategy_of(const ContextParallelOptions& options) {
  return std::make_unique<ContextStrategy>(options);
}

std::vector<NamedStrategy> ContextStrategy::names() {
  return {named_strategy("context_parallel", ContextParallelOptions{}),
          named_strategy("context_parallel_2", ContextParallelOptions{.size = 2}),
          named_strategy("context_parallel_4", ContextParallelOptions{.size = 4}),
          named_strategy("context_parallel_8", ContextParallelOptions{.size = 8})};
}

void ContextStrategy::on_connect() {
  const int size = options_.size == 0 ? group_->size() : options_.size;
  mesh_ = std::make_unique<Mesh>(group_, std::vector<std::pair<std::string, int>>{{"data", -1}, {"context", size}});
  copies_.connect(group_, device_);
}

std::unique_ptr<ModuleSync> ContextStrategy::setup_module(torch::nn::Module& module) {
  const auto ranks = mesh_->shared_group("context");
  if (ranks->size() > 1) {
    auto options = options_;
    options.size = ranks->size();
    split_context(module, options, ranks);
  }
  copies_.set_precision(precision_);
  return copies_.setup_module(module);
}

StateLayout ContextStrategy::layout_over(int ranks) const {
  auto layout = copies_.layout_over(ranks);
  auto options = options_;
  if (options.size == 0) options.size = ranks;
  LEVIN_CHECK(ranks % options.size == 0, "[context_parallel] sequences over ", options.size, " ranks do not divide ",
              ranks, " ranks");
  if (options.size > 1)
    layout.split_module = [options](torch::nn::Module& module) {
      split_context(module, options, std::make_shared<ImaginedCollective>(0, options.size));
    };
  return layout;
}

}  // namespace levin
