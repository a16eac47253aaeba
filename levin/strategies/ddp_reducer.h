#pragma once

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "levin/strategies/ddp_capture.h"

namespace levin::detail {

/// The reducer, and what it knows but does not tell.
class OpenReducer : public c10d::Reducer {
 public:
  using Reducer::Reducer;

  /// Whether the backward pass that was prepared for has been reduced to its end.
  bool finalized() const {
    std::lock_guard lock(mutex_);
    return !expect_autograd_hooks_;
  }
  /// Whether any gradient has come in a pass that is not at its end.
  bool began() const {
    std::lock_guard lock(mutex_);
    return require_finalize_;
  }
  void forget_counts() {
    std::lock_guard lock(mutex_);
    for (auto& [index, count] : numGradHooksTriggeredMap_) count = 0;
  }

  /// Reductions that were started in the pass that was prepared for.
  size_t started() const {
    std::lock_guard lock(mutex_);
    // Which parameters were used is exchanged after the last bucket.
    const bool exchanges_uses = find_unused_parameters_ && !static_graph_ && next_bucket_ == buckets_.size();
    return next_bucket_ + (exchanges_uses && local_used_work_ ? 1 : 0);
  }
  /// Gradients in buckets become tensors of their own over that memory. Torch's Optimizer::zero_grad detaches in place,
  /// which it refuses for a view.
  void own_views() {
    std::lock_guard lock(mutex_);
    for (auto& bucket : buckets_)
      for (auto* views : {&bucket.bucket_views_in, &bucket.bucket_views_out})
        for (auto& view : *views) view = view.variable_data();
  }
  /// The part of a bucket that belongs to a parameter.
  Tensor bucket_view(size_t param) {
    std::lock_guard lock(mutex_);
    const auto& place = variable_locators_[param];
    return buckets_[place.bucket_index].bucket_views_in[place.intra_bucket_index];
  }
  /// With version counters of their own: what is written to one gradient must not look like a change of all.
  std::vector<GradientBucket> buckets() const {
    std::lock_guard lock(mutex_);
    std::vector<GradientBucket> all;
    for (const auto& bucket : buckets_) {
      auto& added = all.emplace_back(GradientBucket{bucket.gradients.variable_data(), bucket.variable_indices});
      for (const auto& view : bucket.bucket_views_in) added.views.push_back(view.variable_data());
    }
    return all;
  }
  /// How often a parameter gets a gradient in a pass, as the first pass of a static graph has shown.
  int uses(size_t param) const {
    std::lock_guard lock(mutex_);
    const auto found = numGradHooksTriggeredMap_.find(param);
    return found == numGradHooksTriggeredMap_.end() ? 0 : found->second;
  }
  /// Builds the buckets for gradients that come in this order; every rank takes the order of rank 0. Gradients that are
  /// there stay the tensors they are: as views into the new buckets they would be divided by another operation than
  /// those of later passes.
  void build_buckets(const std::vector<size_t>& order) {
    std::vector<Tensor> grads;
    {
      std::lock_guard lock(mutex_);
      rebuilt_params_.clear();
      rebuilt_param_indices_.clear();
      for (const auto param : order) push_rebuilt_params(param);
      for (const auto& param : params_) grads.push_back(std::exchange(param.mutable_grad(), Tensor()));
    }
    rebuild_buckets();
    for (size_t i = 0; i < grads.size(); ++i) params_[i].mutable_grad() = std::move(grads[i]);
  }
  /// Averages gradients of which all have come: what the hooks of a pass do one by one.
  void reduce_all(int divisor) {
    const at::NoGradGuard no_grad;
    prepare_for_backward({});
    std::lock_guard lock(mutex_);
    require_finalize_ = true;
    div_factor_ = divisor;
    for (size_t i = 0; i < params_.size(); ++i)
      expect_sparse_gradients_[i] ? mark_variable_ready_sparse(i) : mark_variable_ready_dense(i);
    for (auto& bucket : buckets_) bucket.pending = 0;
    mark_bucket_ready(0);
    finalize_backward();
  }
  bool has_sparse() const {
    return std::ranges::find(expect_sparse_gradients_, true) != expect_sparse_gradients_.end();
  }
  /// Ends a pass that failed: the reductions that were started are waited for, and those that other ranks have started
  /// (`most` in all) are joined with zeros, so that none is left to meet one of the next pass.
  void drain(size_t most) {
    const auto mine = started();
    for (size_t i = 0; i < std::min(mine, buckets_.size()); ++i)
      if (buckets_[i].future_work) buckets_[i].future_work->waitAndThrow();
    if (mine < most) {
      auto zeros = get_grad_buckets(/*return_zero_tensors=*/true);
      for (size_t i = mine; i < std::min(most, zeros.size()); ++i) run_comm_hook(zeros[i])->waitAndThrow();
      if (most > zeros.size()) {
        std::vector<Tensor> used{at::zeros_like(local_used_map_dev_)};
        process_group_->allreduce(used)->wait();
      }
    }
    if (local_used_work_) local_used_work_->wait();
  }
  /// As before the first forward, but for the buckets. Not for a static graph of which reductions were started.
  void forget_pass() {
    std::lock_guard lock(mutex_);
    expect_autograd_hooks_ = false;
    require_finalize_ = false;
    first_autograd_hook_called_ = false;
    div_factor_ = -1;      // taken again
    if (!static_graph_) {  // which remembers for good what its first pass has used
      local_used_work_.reset();
      local_used_map_reduced_ = false;
      if (local_used_map_.defined()) local_used_map_.zero_();
    }
  }
};

}  // namespace levin::detail
