#include "levin/strategies/tensor_parallel.h"

#include <cmath>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>

#include "levin/core/error.h"
#include "levin/strategies/layout.h"
#include "levin/strategies/module_states.h"

namespace levin {
namespace {

/// Gradients of parameters that every rank has, and of which each saw a part, are summed as they come.
void sum_gradients(const TensorSplit::Parameter& parameter, const TensorRanks& ranks) {
  if (parameter.sums_grad) {
    parameter.tensor.register_hook([ranks](const Tensor& grad) {
      auto sum = grad.contiguous().clone();
      ranks->all_reduce(sum);
      return sum;
    });
    return;
  }
  if (parameter.shared.count == 0) return;
  // Keys and values that several ranks have: each rank adds its own to their places among all of them.
  const auto& ranges = parameter.slice.ranges;
  const auto all_rows = 2 * (ranges[2].first - ranges[1].first), first = parameter.slice.whole[0] - all_rows;
  parameter.tensor.register_hook([ranks, ranges, first, all_rows, own = parameter.shared](const Tensor& grad) {
    auto sizes = grad.sizes().vec();
    sizes[0] = all_rows;
    auto all = at::zeros(sizes, grad.options());
    auto at = own.first;
    for (size_t i = 1; i < ranges.size(); ++i) {
      all.narrow(0, ranges[i].first - first, ranges[i].count).copy_(grad.narrow(0, at, ranges[i].count));
      at += ranges[i].count;
    }
    ranks->all_reduce(all);
    auto sum = grad.clone();
    at = own.first;
    for (size_t i = 1; i < ranges.size(); ++i) {
      sum.narrow(0, at, ranges[i].count).copy_(all.narrow(0, ranges[i].first - first, ranges[i].count));
      at += ranges[i].count;
    }
    return sum;
  });
}

/// What is whole on every rank draws the same random numbers on every rank: those of the first.
void share_random_state(Collective& ranks, c10::Device device) {
  std::vector<c10::Device> devices{c10::Device(c10::kCPU)};
  if (device.is_cuda()) devices.push_back(device);
  for (const auto& each : devices) {
    auto generator = at::globalContext().defaultGenerator(each);
    const std::lock_guard lock(generator.mutex());
    auto state = generator.get_state();
    ranks.broadcast(state);
    if (ranks.rank() > 0) generator.set_state(state);
  }
}

/// The gradients that count for a norm: what another rank has too is left out.
Tensor counted(const TensorSplit::Parameter* parameter, const Tensor& grad) {
  return parameter && !parameter->owns_shared ? grad.narrow(0, 0, parameter->shared.first) : grad;
}

}  // namespace

TensorStrategy::TensorStrategy(TensorParallelOptions options)
    : Strategy({.name = "tensor_parallel", .syncs_batchnorm = true}),
      options_(std::move(options)),
      copies_(DdpOptions{}) {
  LEVIN_CHECK(options_.size >= 0, "[tensor_parallel] size ", options_.size, " must be 1 or more, or 0 for all ranks");
}

std::unique_ptr<Strategy> strategy_of(const TensorParallelOptions& options) {
  return std::make_unique<TensorStrategy>(options);
}

std::vector<NamedStrategy> TensorStrategy::names() {
  return {named_strategy("tensor_parallel", TensorParallelOptions{}),
          named_strategy("tensor_parallel_2", TensorParallelOptions{.size = 2}),
          named_strategy("tensor_parallel_4", TensorParallelOptions{.size = 4}),
          named_strategy("tensor_parallel_8", TensorParallelOptions{.size = 8})};
}

void TensorStrategy::on_connect() {
  const int size = options_.size == 0 ? group_->size() : options_.size;
  mesh_ = std::make_unique<Mesh>(group_, ParallelSizes{.dp_replicate = -1, .tp = size});
  copies_.connect(mesh_->shared_group("dp_replicate"), device_);
  shards_ = std::make_unique<TensorShards>(*group_);
  shards_->set_saves_full(true);
}

std::unique_ptr<ModuleSync> TensorStrategy::setup_module(torch::nn::Module& module) {
  LEVIN_CHECK(!precision_.fp8, "[tensor_parallel] precision \"", precision_.name,
              "\" is not possible with this strategy; use \"bf16-mixed\"");
  if (group().size() > 1) {
    const auto parameters = detail::unique_parameters(module);
    const auto buffers = detail::unique_buffers(module);
    detail::check_same_states(*group_, "parameter", parameters);
    detail::check_same_states(*group_, "buffer", buffers);
    detail::broadcast_states(*group_, parameters);
    detail::broadcast_states(*group_, buffers);
  }
  const auto ranks = mesh_->shared_group("tp");
  if (ranks->size() > 1) {
    auto options = options_;
    options.size = ranks->size();
    splits_.push_back(split_tensors(module, options, ranks));
    share_random_state(*ranks, device_);
    for (const auto& parameter : splits_.back()->parameters()) {
      if (parameter.tensor.requires_grad()) sum_gradients(parameter, ranks);
      if (parameter.is_split())
        shards_->add(parameter.tensor, {.sizes = parameter.slice.whole,
                                        .writes = mesh_->coordinate("dp_replicate") == 0,
                                        .slice = std::make_shared<const TensorSlice>(parameter.slice)});
    }
  }
  if (sync_batchnorm_) copies_.sync_batchnorm();  // ranks of one copy have the same batch
  return copies_.setup_module(module);
}

StateLayout TensorStrategy::layout_over(int ranks) const {
  StateLayout layout{.ranks = ranks};
  if (options_.size != 1) layout.not_estimated = "strategy \"tensor_parallel\" has no estimate yet; see \"fsdp\"";
  return layout;
}

const TensorSplit::Parameter* TensorStrategy::find(const Tensor& parameter) const {
  for (const auto& split : splits_)
    if (const auto* found = split->find(parameter)) return found;
  return nullptr;
}

Optimizer TensorStrategy::setup_optimizer(Optimizer optimizer) {
  if (mesh_->size("tp") == 1) return optimizer;
  const auto traits = optimizer.traits();
  LEVIN_CHECK(traits && traits->elementwise, "[tensor_parallel] ", optimizer.name(),
              traits ? " steps by figures of full parameters" : " does not say that it steps each element separately",
              ", and each rank has a part of them; use AdamW or SGD, or strategy \"ddp\"");
  shards_->add_optimizer(optimizer);
  return optimizer;
}

Tensor TensorStrategy::grad_norm(std::span<const Tensor> params, double norm_type) {
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(norm_type);
  // Sums of powers, or the largest; of split parameters, and of those that every rank has.
  auto split = at::zeros({}, at::device(device())), whole = split.clone();
  for (const auto& param : params) {
    if (!param.grad().defined()) continue;
    const auto* known = find(param);
    const auto norm = at::linalg_vector_norm(counted(known, param.grad()), norm_type).to(split.device(), at::kFloat);
    auto& total = known && known->is_split() ? split : whole;
    if (largest)
      total = at::maximum(total, norm);
    else
      total += norm.pow(norm_type);
  }
  mesh_->group("tp").all_reduce(split, largest ? ReduceOp::kMax : ReduceOp::kSum);
  return largest ? at::maximum(split, whole) : (split + whole).pow(1 / norm_type);
}

}  // namespace levin
