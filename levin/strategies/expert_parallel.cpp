#include "levin/strategies/expert_parallel.h"

#include <cmath>

#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/distributed/single.h"
#include "levin/strategies/float_norm.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/module_states.h"

namespace levin {
namespace {

/// Two reducers around one module. Ranks exchange tokens in every call, so all make as many steps.
class TwoSyncs : public ModuleSync {
 public:
  TwoSyncs(std::unique_ptr<ModuleSync> one, std::unique_ptr<ModuleSync> other) {
    for (auto* each : {&one, &other})
      if (*each) syncs_.push_back(std::move(*each));
  }

  void before_forward() override {
    for (auto& each : syncs_) each->before_forward();
  }
  void leave_forward() override {
    for (auto& each : syncs_) each->leave_forward();
  }
  void after_forward(std::span<Tensor> outputs) override {
    for (auto& each : syncs_) each->after_forward(outputs);
  }
  void before_backward(const Tensor& loss) override {
    for (auto& each : syncs_) each->before_backward(loss);
  }
  void after_backward(const std::exception* failure) override {
    std::exception_ptr first;
    for (auto& each : syncs_) try {
        each->after_backward(failure);
      } catch (const std::exception&) {
        if (!first) first = std::current_exception();
      }
    if (first) std::rethrow_exception(first);
  }
  void set_sync(bool enabled) override {
    for (auto& each : syncs_) each->set_sync(enabled);
  }
  void sync_buffers() override {
    for (auto& each : syncs_) each->sync_buffers();
  }

 private:
  std::vector<std::unique_ptr<ModuleSync>> syncs_;
};

}  // namespace

ExpertStrategy::ExpertStrategy(ExpertParallelOptions options)
    : Strategy({.name = "expert_parallel"}),
      options_(options),
      copies_(DdpOptions{}),
      expert_copies_(DdpOptions{.broadcast_buffers = false}) {
  LEVIN_CHECK(options_.size >= 0, "[expert_parallel] size ", options_.size, " must be 1 or more, or 0 for all ranks");
}

std::unique_ptr<Strategy> strategy_of(const ExpertParallelOptions& options) {
  return std::make_unique<ExpertStrategy>(options);
}

std::vector<NamedStrategy> ExpertStrategy::names() {
  return {named_strategy("expert_parallel", ExpertParallelOptions{}),
          named_strategy("expert_parallel_2", ExpertParallelOptions{.size = 2}),
          named_strategy("expert_parallel_4", ExpertParallelOptions{.size = 4}),
          named_strategy("expert_parallel_8", ExpertParallelOptions{.size = 8})};
}

void ExpertStrategy::on_connect() {
  const int size = options_.size == 0 ? group_->size() : options_.size;
  mesh_ = std::make_unique<Mesh>(group_, std::vector<std::pair<std::string, int>>{{"copy", -1}, {"expert", size}});
  copies_.connect(group_, device_);
  expert_copies_.connect(mesh_->shared_group("copy"), device_);
  copies_.set_filter([this](const Tensor& parameter) { return !find(parameter); });
  expert_copies_.set_filter([this](const Tensor& parameter) { return find(parameter) != nullptr; });
  shards_ = std::make_unique<TensorShards>(*group_);
  shards_->set_saves_full(true);
}

std::unique_ptr<ModuleSync> ExpertStrategy::setup_module(torch::nn::Module& module) {
  LEVIN_CHECK(!precision_.fp8, "[expert_parallel] precision \"", precision_.name,
              "\" is not possible with this strategy; use \"bf16-mixed\"");
  if (group().size() > 1) {
    const auto parameters = detail::unique_parameters(module);
    detail::check_same_states(name(), *group_, "parameter", parameters);
    detail::broadcast_states(*group_, parameters);
  }
  auto split = split_experts(module, {.size = mesh_->size("expert")}, mesh_->shared_group("expert"), group_);
  for (const auto& parameter : split->parameters)
    shards_->add(parameter.tensor, {.sizes = parameter.slice.whole,
                                    .writes = mesh_->coordinate("copy") == 0,
                                    .slice = std::make_shared<const TensorSlice>(parameter.slice)});
  splits_.push_back(std::move(split));
  auto of_copies = copies_.setup_module(module);
  return std::make_unique<TwoSyncs>(std::move(of_copies), expert_copies_.setup_module(module));
}

const TensorSplit::Parameter* ExpertStrategy::find(const Tensor& parameter) const {
  for (const auto& split : splits_)
    if (const auto* found = split->find(parameter)) return found;
  return nullptr;
}

StateLayout ExpertStrategy::layout_over(int ranks) const {
  auto layout = copies_.layout_over(ranks);
  const int size = options_.size == 0 ? ranks : options_.size;
  LEVIN_CHECK(ranks % size == 0, "[expert_parallel] experts over ", size, " ranks do not divide ", ranks, " ranks");
  const auto split = std::make_shared<std::shared_ptr<ExpertSplit>>();
  layout.split_module = [split, size, ranks](torch::nn::Module& module) {
    *split = split_experts(module, {.size = size}, std::make_shared<ImaginedCollective>(0, size),
                           std::make_shared<ImaginedCollective>(0, ranks));
  };
  layout.expert_ranks = [split, copies = ranks / size](const Tensor& parameter) {
    return (*split)->find(parameter) ? copies : 0;
  };
  return layout;
}

Optimizer ExpertStrategy::setup_optimizer(Optimizer optimizer) {
  if (mesh_->size("expert") == 1) return optimizer;
  const auto traits = optimizer.traits();
  LEVIN_CHECK(traits && traits->elementwise, "[expert_parallel] ", optimizer.name(),
              traits ? " steps by figures of full parameters" : " does not say that it steps each element separately",
              ", and each rank has a part of them; use AdamW or SGD, or strategy \"ddp\"");
  shards_->add_optimizer(optimizer);
  return optimizer;
}

Tensor ExpertStrategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(norm_type);
  // Sums of powers, or the largest; of experts, and of what every rank has.
  auto split = at::zeros({}, at::device(device())), whole = split.clone();
  for (const auto& param : params) {
    if (!param.grad().defined()) continue;
    const auto norm = detail::float_norm(param.grad(), norm_type).to(split.device(), at::kFloat);
    auto& total = find(param) ? split : whole;
    if (largest)
      total = at::maximum(total, norm);
    else
      total += norm.pow(norm_type);
  }
  mesh_->group("expert").all_reduce(split, largest ? ReduceOp::kMax : ReduceOp::kSum);
  return largest ? at::maximum(split, whole) : (split + whole).pow(1 / norm_type);
}

}  // namespace levin
