#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/devices/graphs.h"
#include "levin/devices/host_memory.h"
#include "levin/strategies/sharding/group.h"
#include "levin/strategies/sharding/group_memory.h"

// What ShardGroup does with gradients.
namespace levin::detail {

void ShardGroup::lay_out_grads() {
  grad_numel_ = 0;
  for (auto& param : params_) {
    param.grad_offset = param.param.requires_grad() ? grad_numel_ : -1;
    if (param.grad_offset >= 0) grad_numel_ += aligned_part(param.shard_numel());
  }
}

Tensor ShardGroup::grad_part(const Tensor& flat, const ShardedParam& param) const {
  return flat.narrow(0, param.grad_offset, param.shard.numel()).view(param.shard.sizes());
}

/// Of the sum of reduced gradients of several backwards.
c10::ScalarType ShardGroup::sum_dtype() const {
  return c10::promoteTypes(*options_.grad_dtype, *options_.accumulate_dtype);
}

/// Of what this backward reduces: a sum of micro-batches is not rounded to less than it was added in.
c10::ScalarType ShardGroup::reduced_dtype() const {
  const bool is_sum = std::ranges::any_of(params_, [this](const auto& param) {
    const Tensor& grad = param.param.grad();
    return param.grad_offset >= 0 && grad.defined() && grad.scalar_type() == sum_dtype();
  });
  return is_sum ? sum_dtype() : *options_.grad_dtype;
}

/// The memory of gradients as give_grads handed it out, when all of them are still there, in their places.
Tensor ShardGroup::grads_in_place() const {
  Tensor flat;
  for (const auto& param : params_) {
    const Tensor& grad = param.param.grad();
    if (param.grad_offset < 0) continue;
    if (!grad.defined() || grad.sizes() != param.shard.sizes()) return {};
    if (grad.numel() == 0) continue;
    const auto dtype = grad.scalar_type();
    if (flat.defined() ? dtype != flat.scalar_type() : dtype != *options_.grad_dtype && dtype != sum_dtype()) return {};
    if (grad.storage_offset() != param.grad_offset || !grad.is_contiguous()) return {};
    if (!flat.defined()) {
      if (grad.storage().nbytes() < static_cast<size_t>(grad_numel_) * grad.element_size()) return {};
      flat = at::empty({0}, grad.options()).set_(grad.storage(), 0, {grad_numel_}, {1});
    } else if (!grad.is_alias_of(flat)) {
      return {};
    }
  }
  return flat;
}

/// Allocates this rank's shards of the gradients. Memory beside a device that nobody holds any more is reused; pinned
/// is what a device copies to.
Tensor ShardGroup::empty_grads(c10::ScalarType dtype) {
  const auto options = at::TensorOptions(options_.offload ? at::kCPU : options_.device).dtype(dtype);
  if (!options_.offload || !options_.pin_gradients) return at::empty({grad_numel_}, options);
  for (const auto& room : host_grads_)
    if (room.numel() == grad_numel_ && room.scalar_type() == dtype && room.storage().use_count() == 1) {
      if (arrival_) arrival_();  // gradients that nobody waited for may be on their way into it
      return room.detach();
    }
  std::erase_if(host_grads_, [this](const Tensor& room) { return room.numel() != grad_numel_; });
  const bool arrives = dtype == *options_.grad_dtype;
  host_grads_.push_back(arrives ? page_locked(grad_numel_, dtype) : at::empty({grad_numel_}, options));
  return host_grads_.back().detach();
}

bool ShardGroup::has_unreduced() const {
  return std::ranges::any_of(params_, [](const auto& param) { return param.unreduced.defined(); });
}

bool ShardGroup::take_grads() {
  if (whole_) return false;
  const at::NoGradGuard no_grad;
  lay_out_grads();
  sent_bytes_.clear();
  if (keeps_gradients()) {
    for (auto& param : params_) {
      param.kept_grad = param.param.grad();
      param.param.mutable_grad() = param.unreduced;
    }
    return has_unreduced();
  }
  grads_ = grads_in_place();
  const bool any = std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    return param.grad_offset >= 0 && param.param.grad().defined();
  });
  if (any && !grads_.defined()) {
    grads_ = empty_grads(sum_dtype()).zero_();
    for (const auto& param : params_) {
      const Tensor& grad = param.param.grad();
      if (param.grad_offset < 0 || !grad.defined()) continue;
      LEVIN_CHECK(grad.sizes() == param.shard.sizes(), "[fsdp] the gradient of \"", param.name, "\" has shape ",
                  fmt::format("{}", grad.sizes()), "; this rank's shard has ", fmt::format("{}", param.shard.sizes()));
      grad_part(grads_, param).copy_(grad);
    }
  }
  bool unreduced = false;
  for (auto& param : params_) {
    if (param.unreduced.defined()) ++layout_version_;  // a compiled step may work on it
    unreduced = unreduced || param.unreduced.defined();
    param.param.mutable_grad() = param.unreduced;
    param.unreduced.reset();
    param.sent = false;
  }
  return unreduced;
}

void ShardGroup::begin_reduce() {
  if (whole_) return;
  const at::NoGradGuard no_grad;
  if (update_)
    update_in_place();
  else if (alone() || grad_numel_ == 0)
    reduce_alone();
  else
    reduce_over_ranks();
}

void ShardGroup::set_update(std::function<void()> step) {
  const bool possible = options_.offload && alone() && !whole_ && options_.param_dtype == options_.dtype &&
                        options_.grad_dtype == options_.dtype && !grads_.defined() && trained();
  update_ = possible ? std::move(step) : nullptr;
}

void ShardGroup::update_in_place() {
  const bool any =
      std::any_of(params_.begin(), params_.end(), [](const auto& param) { return param.param.grad().defined(); });
  if (!any) return;
  update_();
  // Alone, shards are laid out as the full parameters are.
  LaneWork work{.operation = "fsdp.update", .used = {shards_, full_}};
  work.before = [to = shards_, from = full_] { to.copy_(from, /*non_blocking=*/true); };
  reducing_ = lanes_->run(Lanes::kReduce, std::move(work));
}

/// Where the gradients of this backward go.
Tensor ShardGroup::receiving(c10::ScalarType dtype) {
  if (receiving_.defined()) return receiving_;
  receiving_ = empty_grads(dtype);
  if (grads_.defined())
    incoming_ = receiving_;
  else
    grads_ = receiving_;
  return receiving_;
}

void ShardGroup::send_grad(size_t i) {
  auto& param = params_[i];
  auto& grad = param.param.mutable_grad();
  // Only what a begin_reduce will follow in this pass.
  if (!options_.offload || !alone() || update_ || !progress.used || progress.reduced) return;
  if (param.sent || param.grad_offset < 0 || !grad.defined() || grad.layout() != at::kStrided ||
      static_cast<int64_t>(grad.nbytes()) < kLeavesAlone)
    return;
  const at::NoGradGuard no_grad;
  param.sent = true;
  sent_bytes_.push_back(static_cast<int64_t>(grad.nbytes()));
  const auto from = std::exchange(grad, {});
  const auto to = grad_part(receiving(*options_.grad_dtype), param);
  LaneWork work{.operation = "fsdp.reduce", .used = {from, to}};
  work.before = [from, to] { to.copy_(from, /*non_blocking=*/true); };
  sending_.push_back(lanes_->run(Lanes::kReduce, std::move(work)));
}

// Nobody else has gradients, or they are empty: they are cast, or brought to the host.
void ShardGroup::reduce_alone() {
  const auto dtype = options_.offload ? *options_.grad_dtype : reduced_dtype();
  LaneWork work{.operation = "fsdp.reduce"};
  std::vector<std::pair<Tensor, const ShardedParam*>> grads;
  std::vector<const ShardedParam*> without;
  std::vector<size_t> again;
  for (size_t i = 0; i < params_.size(); ++i) {
    auto& param = params_[i];
    auto& grad = param.param.mutable_grad();
    if (param.grad_offset < 0) continue;
    if (param.sent) {
      if (grad.defined()) again.push_back(i);
    } else if (!grad.defined()) {
      without.push_back(&param);
    } else {
      grads.emplace_back(grad.layout() == at::kStrided ? grad : grad.to_dense(), &param);
      work.used.push_back(grads.back().first);
      grad.reset();
    }
  }
  if (grads.empty() && sending_.empty()) return;
  const auto into = receiving(dtype);
  for (const auto* param : without) grad_part(into, *param).zero_();
  add_later_grads(again, into);
  // The oldest have had the time of the rest of the unit; what they leave is free for the next one.
  for (auto arrived = arrived_with_unit(sent_bytes_); arrived > 0 && !sending_.empty(); --arrived) {
    sending_.front().finish();
    sending_.pop_front();
  }
  work.used.push_back(into);
  work.before = [this, grads, into] {
    for (const auto& [grad, param] : grads)  // without elements there may be a shard of other rows, and nothing in it
      if (grad.numel() > 0) grad_part(into, *param).copy_(grad, /*non_blocking=*/true);
  };
  reducing_ = lanes_->run(Lanes::kReduce, std::move(work));
  receiving_.reset();
}

/// A backward within backward gave these a gradient after theirs had left.
void ShardGroup::add_later_grads(const std::vector<size_t>& params, const Tensor& into) {
  if (params.empty()) return;
  lanes_->synchronize();
  for (const auto i : params) {
    auto& grad = params_[i].param.mutable_grad();
    grad_part(into, params_[i]).add_((grad.layout() == at::kStrided ? grad : grad.to_dense()).to(at::kCPU));
    grad.reset();
  }
}

Tensor ShardGroup::pack_grads(double scale) {
  const int64_t ranks = ranks_->size();
  const auto options = at::TensorOptions(options_.device).dtype(*options_.reduce_dtype);
  const auto packed = at::zeros({ranks, grad_row()}, options);
  bool any = false;
  for (auto& param : params_) {
    auto& grad = param.param.mutable_grad();
    if (param.grad_offset < 0 || !grad.defined()) continue;
    any = true;
    auto whole = (grad.layout() == at::kStrided ? grad : grad.to_dense()).contiguous().view({-1});
    if (scale != 1) whole = whole.mul(scale);
    each_piece(packed, whole, param, param.grad_offset, [](const Tensor& to, const Tensor& from) { to.copy_(from); });
    grad.reset();
    if (param.unreduced.defined()) param.unreduced.zero_();
  }
  if (options_.tells_use && any) packed.narrow(1, grad_numel_, 1).fill_(1);
  used_here_ = any;
  return packed.view({-1});
}

/// Elements that one rank gets of a reduction.
int64_t ShardGroup::grad_row() const {
  return grad_numel_ + (options_.tells_use ? aligned_part(1) : 0);
}

void ShardGroup::reduce_over_ranks() {
  const double mean = 1.0 / (ranks_->size() * replicas_->size());
  // A sum of float16 gradients may be too large for it where their mean is not.
  const bool before = options_.reduce_dtype == at::kHalf;
  const auto dtype = reduced_dtype();
  const auto all = pack_grads(before ? mean : 1);
  // Gloo sums everything on every rank, in a copy that lives until a thread of its own lets go of it. Summed in place,
  // there is one buffer, and it goes when this says so.
  const auto process_group = ranks_->process_group();
  const bool in_place = process_group && process_group->getBackendType() == c10d::ProcessGroup::GLOO;
  const auto row = grad_row();
  auto mine = in_place || !process_group ? all.narrow(0, ranks_->rank() * row, row) : at::empty({row}, all.options());
  LaneWork work{.operation = "fsdp.reduce_scatter", .used = {all, mine}, .group = ranks_.get(), .unit = order_number_};
  work.collective = [all, mine, in_place](c10d::ProcessGroup& group) {
    auto in = all, out = mine;
    if (in_place) {
      std::vector<Tensor> tensors{in};
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::SUM;
      return group.allreduce(tensors, options);
    }
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d::ReduceOp::SUM;
    return group._reduce_scatter_base(out, in, options);
  };
  work.after = [this, all, mine, in_place, dtype, factor = before ? 1 : mean] {
    const at::NoGradGuard no_gradient;
    auto reduced = in_place ? mine.clone() : mine;
    if (in_place && all.is_cpu()) set_memory(all, false);
    if (replicas_->process_group())
      replicas_->run("fsdp.all_reduce", [&](c10d::ProcessGroup& group) {
        std::vector<Tensor> tensors{reduced};
        c10d::AllreduceOptions options;
        options.reduceOp = c10d::ReduceOp::SUM;
        group.allreduce(tensors, options)->wait();
      });
    if (options_.tells_use) {
      if (!used_here_) any_use_ = reduced.narrow(0, grad_numel_, 1);
      reduced = reduced.narrow(0, 0, grad_numel_);
    }
    // In the wider dtype, so that nothing is lost in the division.
    reduced = reduced.to(c10::promoteTypes(*options_.reduce_dtype, dtype));
    if (factor != 1) reduced.mul_(factor);
    add_grads(std::move(reduced), dtype);
  };
  reducing_ = lanes_->run(Lanes::kReduce, std::move(work));
}

void ShardGroup::add_grads(Tensor reduced, c10::ScalarType dtype) {
  first_grads_ = !grads_.defined();
  if (!options_.offload) {
    // Each rounded alike: a compiled step does not know which micro-batch it is.
    reduced = reduced.to(dtype);
    if (grads_.defined())
      add_to_sum(reduced);
    else
      grads_ = reduced;
    return;
  }
  if (incoming_.defined()) {  // of an earlier reduction of this backward
    if (arrival_ && !is_capturing()) arrival_();
    settle_host();
  }
  auto into = empty_grads(*options_.grad_dtype);
  into.copy_(reduced, /*non_blocking=*/true);
  if (grads_.defined())
    incoming_ = into;
  else
    grads_ = into;
}

/// Micro-batches from the second on: many small gradients in 16 bits would stop to change their sum.
void ShardGroup::add_to_sum(const Tensor& more) {
  if (grads_.scalar_type() != sum_dtype()) {
    const auto first = std::move(grads_);
    grads_ = empty_grads(sum_dtype()).copy_(first);
  }
  grads_.add_(more);
}

void ShardGroup::finish_reduce() {
  if (reducing_.pending()) {
    arrival_ = reducing_.finish();
    sending_.clear();  // copies of one lane end in order
  }
  if (any_use_.defined()) forget_unused();
  if (!options_.offload) settle_host();
}

void ShardGroup::finish_reduce_on_host() {
  finish_reduce();
  if (!options_.offload) return;
  if (arrival_ && !is_capturing()) arrival_();  // else whoever replays waits
  settle_host();
}

/// What no rank had a gradient of has none: an optimizer would move by zeros, too.
void ShardGroup::forget_unused() {
  const bool used = std::exchange(any_use_, {}).item<double>() != 0;
  if (used) return;
  (first_grads_ ? grads_ : incoming_).reset();
}

void ShardGroup::settle_host() {
  arrival_ = nullptr;
  if (!incoming_.defined()) return;
  const at::NoGradGuard no_grad;
  add_to_sum(incoming_);
  incoming_.reset();
}

void ShardGroup::keep_unreduced() {
  if (whole_) return;
  const at::NoGradGuard no_grad;
  for (auto& param : params_) {
    auto& grad = param.param.mutable_grad();
    if (!param.unreduced.is_same(grad)) {
      // The memory of a graph is not what later calls find.
      refuse_capture(concat("\"", param.name, "\" has its first gradient in this step"));
      // Later backwards add to it, where it is.
      const bool dense = grad.defined() && grad.layout() == at::kStrided;
      param.unreduced = dense ? grad.to(*options_.accumulate_dtype) : grad;
    }
    grad.reset();
  }
}

void ShardGroup::give_grads() {
  if (whole_) return;
  const at::NoGradGuard no_grad;
  for (auto& param : params_) {
    auto& grad = param.param.mutable_grad();
    // A tensor of its own, no view: torch's Optimizer::zero_grad detaches in place.
    const auto now = param.grad_offset < 0 || !grads_.defined() ? Tensor() : grad_part(grads_, param).variable_data();
    grad = std::exchange(param.kept_grad, {});
    if (!grad.defined())
      grad = now.defined() && keeps_gradients() ? now.to(sum_dtype()) : now;
    else if (now.defined())
      grad.add_(now);
  }
  grads_.reset();  // they are the parameters' now, and go when those are set to none
}

}  // namespace levin::detail
