#include "levin/strategies/sharding/group.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "levin/core/error.h"
#include "levin/devices/host_memory.h"
#include "levin/nn/deferred_init.h"
#include "levin/strategies/sharding/group_memory.h"

namespace levin::detail {

ShardGroup::ShardGroup(std::string name, std::vector<ShardedParam> params, std::shared_ptr<Collective> ranks,
                       std::shared_ptr<Collective> replicas, std::shared_ptr<Lanes> lanes, const GroupOptions& options,
                       int64_t compared_numel)
    : name_(std::move(name)),
      params_(std::move(params)),
      ranks_(std::move(ranks)),
      replicas_(std::move(replicas)),
      lanes_(std::move(lanes)),
      options_(options) {
  const at::NoGradGuard no_grad;
  if (!options_.dtype) options_.dtype = params_.front().param.scalar_type();
  if (!options_.param_dtype) options_.param_dtype = options_.dtype;
  if (!options_.reduce_dtype) options_.reduce_dtype = options_.dtype;
  if (!options_.grad_dtype) options_.grad_dtype = options_.dtype;
  if (!options_.accumulate_dtype) options_.accumulate_dtype = options_.dtype;
  if (options_.device.is_cpu()) options_.pin_memory = options_.pin_gradients = false;
  lay_out();
  whole_ =
      alone() && !options_.offload && options_.param_dtype == options_.dtype && options_.grad_dtype == options_.dtype;
  make_shards();
  if (auto* order = lanes_->order(); order && !alone())
    order_number_ = order->add(name_, compared_numel > 0 ? compared_numel : full_numel_);
}

ShardGroup::~ShardGroup() {
  if (!options_.offload) return;
  try {
    lanes_->synchronize();           // pinned memory goes at once
  } catch (const std::exception&) {  // a device that has failed copies nothing
  }
}

void ShardGroup::lay_out() {
  const int64_t ranks = ranks_->size();
  for (auto& param : params_) {
    param.sizes = param.param.sizes().vec();
    const int64_t rows = param.sizes.empty() ? 1 : param.sizes[0];
    param.row_numel = rows == 0 ? 0 : param.param.numel() / rows;
    param.rows = (rows + ranks - 1) / ranks;
    param.shard_offset = shard_numel_;
    param.full_offset = full_numel_;
    shard_numel_ += aligned_part(param.shard_numel());
    full_numel_ += aligned_part(param.param.numel());
    const int64_t start = std::min<int64_t>(rows, param.rows * ranks_->rank());
    param.place = {param.sizes, start, replicas_->rank() == 0};
  }
}

void ShardGroup::make_shards() {
  const auto device = options_.device;
  if (!whole_) {
    if (options_.offload && !options_.disk_folder.empty())
      shards_ = on_disk(options_.disk_folder, shard_numel_, *options_.dtype);
    else
      shards_ = empty_parts();
    shards_.zero_();
    if (needs_host_copy()) host_copy_ = host_parts(*options_.param_dtype);
    full_ = hollow(full_numel_, device, *options_.param_dtype);
    if (options_.offload && options_.keeps_device_shards) device_shards_ = at::empty({shard_numel_}, full_.options());
  }
  for (auto& param : params_) {
    if (is_deferred(param.param)) materialize(std::span<const Tensor>(&param.param, 1));
    const bool communicates = options_.broadcast && !alone();
    auto value = param.param.detach();
    if (whole_ || communicates) value = value.to(device, *options_.dtype);
    value = value.contiguous();
    if (communicates) {
      // Other ranks' values are overwritten; what the caller holds elsewhere is left alone.
      if (ranks_->rank() != 0 || replicas_->rank() != 0) value = value.clone();
      replicas_->broadcast(value);
      ranks_->broadcast(value);
    }
    if (whole_) {
      param.param.set_data(value);
      param.shard = param.full = value;
      continue;
    }
    const int64_t rows = param.sizes.empty() ? 1 : param.sizes[0];
    const int64_t mine = std::min(param.rows, rows - param.place.start);
    const auto shape = param.place.part_sizes(mine);
    param.shard = shards_.narrow(0, param.shard_offset, mine * param.row_numel).view(shape);
    param.shard.copy_(own_rows(value, param));
    param.full = full_.narrow(0, param.full_offset, value.numel()).view(param.sizes);
    value.reset();
    param.param.set_data(param.shard);
    param.param.mutable_grad().reset();
  }
  if (host_copy_.defined()) host_copy_.copy_(shards_);
  if (!whole_) set_memory(full_, false);
}

/// This rank's shard of a full parameter.
Tensor ShardGroup::own_rows(const Tensor& whole, const ShardedParam& param) {
  const auto rows = whole.dim() == 0 ? whole.view({1}) : whole;
  return rows.narrow(0, param.place.start, rows_of(param.shard)).view(param.shard.sizes());
}

/// Parts in host memory that are computed with in another dtype are sent from a copy in that one.
bool ShardGroup::needs_host_copy() const {
  return options_.offload && options_.param_dtype != options_.dtype;
}

/// Allocates this rank's shards where and as they are kept.
Tensor ShardGroup::empty_parts() const {
  if (options_.offload && !needs_host_copy()) return host_parts(*options_.dtype);
  const auto place = options_.offload ? c10::Device(at::kCPU) : options_.device;
  return on_large_pages(at::empty({shard_numel_}, at::TensorOptions(place).dtype(*options_.dtype)));
}

/// Allocates this rank's shards in host memory, from where they are copied to the device.
Tensor ShardGroup::host_parts(c10::ScalarType dtype) const {
  return options_.pin_memory ? page_locked(shard_numel_, dtype)
                             : at::empty({shard_numel_}, at::TensorOptions().dtype(dtype));
}

int64_t ShardGroup::element_size() const {
  return static_cast<int64_t>(c10::elementSize(*options_.param_dtype));
}
int64_t ShardGroup::full_bytes() const {
  return full_numel_ * element_size();
}

int64_t ShardGroup::shard_bytes() const {
  return shard_numel_ * static_cast<int64_t>(c10::elementSize(*options_.dtype));
}

bool ShardGroup::trained() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) { return param.param.requires_grad(); });
}

bool ShardGroup::has_memory() const {
  return !whole_ && full_.storage().nbytes() > 0;
}

bool ShardGroup::alone() const {
  return !ranks_->process_group() && !replicas_->process_group();
}

bool ShardGroup::is_copied_alone() const {
  return options_.offload && alone() && options_.pin_memory && options_.disk_folder.empty() && !needs_host_copy() &&
         !device_shards_.defined();
}

// ---- what parameters show

namespace {

bool shows_shard(const ShardedParam& param) {
  const Tensor& now = param.param;
  return now.sizes() == param.shard.sizes() && now.scalar_type() == param.shard.scalar_type() &&
         now.device() == param.shard.device() &&
         (now.numel() == 0 || now.const_data_ptr() == param.shard.const_data_ptr());
}

}  // namespace

void ShardGroup::show_shards() {
  if (whole_) return;
  for (auto& param : params_)
    if (!shows_shard(param)) param.param.set_data(param.shard);
}

void ShardGroup::show_full() {
  if (whole_) return;
  for (auto& param : params_) {
    take_over(param);
    param.param.set_data(param.full);
  }
}

void ShardGroup::take_over_shards() {
  if (whole_) return;
  for (auto& param : params_) take_over(param);
}

// Whoever assigns new data to a parameter (a loader, a user) means this rank's shard, or the full parameter.
void ShardGroup::take_over(ShardedParam& param) {
  const Tensor& now = param.param;
  if (now.is_alias_of(param.full)) return;  // shown already
  if (shows_shard(param)) return;
  const at::NoGradGuard no_grad;
  mark_written();
  if (now.sizes() == param.shard.sizes()) {
    param.shard.copy_(now.detach());
  } else {
    LEVIN_CHECK(now.sizes() == at::IntArrayRef(param.sizes), "[fsdp] parameter \"", param.name,
                "\" was replaced by a tensor of shape ", fmt::format("{}", now.sizes()), "; this rank's shard has ",
                fmt::format("{}", param.shard.sizes()), ", the full parameter ", fmt::format("{}", param.sizes));
    param.shard.copy_(own_rows(now.detach().contiguous(), param));
  }
}

void ShardGroup::set_offload(bool offload) {
  if (whole_ || options_.device.is_cpu() || offload == options_.offload) return;
  LEVIN_CHECK(state_ == State::kSharded, "[", name_, "] shards cannot move while they are gathered");
  const at::NoGradGuard no_grad;
  options_.offload = offload;
  lanes_->synchronize();  // pinned memory goes at once
  const auto moved = empty_parts();
  moved.copy_(shards_);
  shards_ = moved;
  host_copy_ = needs_host_copy() ? host_parts(*options_.param_dtype).copy_(shards_) : Tensor();
  host_grads_.clear();
  for (auto& param : params_) {
    const bool shown = !param.param.is_alias_of(param.full);
    param.shard = shards_.narrow(0, param.shard_offset, param.shard.numel()).view(param.shard.sizes());
    if (shown) param.param.set_data(param.shard);
  }
  if (grads_.defined()) grads_ = grads_.to(shards_.device());
  mark_written();
}

// ---- which copy is the newest

void ShardGroup::mark_written() {
  if (newest_ == Newest::kNoted) state_ = State::kSharded;  // it stayed gathered between passes
  if (newest_ != Newest::kAllShards) newest_ = Newest::kOwnShards;
}

void ShardGroup::expect_step() {
  if (newest_ != Newest::kNoted) newest_ = Newest::kAllShards;  // else it was stepped already
}

bool ShardGroup::outdated() {
  if (whole_ || full_numel_ == 0) return false;
  if (state_ == State::kGathering) finish_gather();
  const at::NoGradGuard no_grad;
  for (auto& param : params_) take_over(param);
  if (newest_ != Newest::kGathered || !has_memory()) return true;
  if (host_copy_.defined()) return renew_copy();
  if (shards_.device() != full_.device()) return true;  // to compare them costs what it costs to send them
  const auto now = shards_.to(full_.scalar_type());
  const auto seen = now.clone();
  std::vector<Tensor> places, values;
  for (const auto& param : params_) {
    if (param.shard.numel() == 0) continue;
    places.push_back(seen.narrow(0, param.shard_offset, param.shard.numel()).view(param.shard.sizes()));
    values.push_back(own_rows(param.full, param));
  }
  if (places.empty()) return false;
  at::_foreach_copy_(places, values);
  // As bits: what is not a number equals itself.
  const auto bits = now.element_size() == 8 ? at::kLong : now.element_size() == 4 ? at::kInt : at::kShort;
  return !at::equal(now.view(bits), seen.view(bits));
}

// ---- gathering

void ShardGroup::allocate_full() {
  if (!has_memory()) set_memory(full_, true);
}

/// This rank's shards where and as the all-gather takes them.
Tensor ShardGroup::source() {
  if (!host_copy_.defined()) return shards_;
  if (newest_ != Newest::kGathered) renew_copy();
  return host_copy_;
}

/// Writes what has changed of the host copy, and says whether anything had: then what was gathered from it is older. An
/// optimizer that writes the copy itself has said so; others, and whoever writes through data(), are found here.
bool ShardGroup::renew_copy() {
  constexpr int64_t kBlock = 1 << 14;  // stays in the nearest cache
  const int64_t blocks = (shard_numel_ + kBlock - 1) / kBlock;
  std::atomic<bool> changed = false;
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    const auto room = at::empty({std::min(kBlock, shard_numel_)}, at::TensorOptions().dtype(*options_.param_dtype));
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlock, numel = std::min(kBlock, shard_numel_ - first);
      const auto now = room.narrow(0, 0, numel), kept = host_copy_.narrow(0, first, numel);
      now.copy_(shards_.narrow(0, first, numel));
      if (std::memcmp(now.const_data_ptr(), kept.const_data_ptr(), now.nbytes()) == 0) continue;
      std::memcpy(kept.mutable_data_ptr(), now.const_data_ptr(), now.nbytes());
      changed = true;
    }
  });
  if (changed) mark_written();
  return changed;
}

Tensor ShardGroup::host_copy_to_write(size_t i) {
  if (!host_copy_.defined()) return {};
  mark_written();
  const auto& param = params_[i];
  return host_copy_.narrow(0, param.shard_offset, param.shard.numel()).view(param.shard.sizes());
}

void ShardGroup::note_values() {
  noted_ = fingerprint(shards_);
  newest_ = Newest::kNoted;
}

void ShardGroup::look_at_noted(WorkerThread& thread) {
  if (newest_ != Newest::kNoted) return;
  const auto task =
      std::make_shared<std::packaged_task<uint64_t()>>([shards = shards_] { return fingerprint(shards); });
  looked_ = task->get_future();
  thread.run([task] { (*task)(); });
}

void ShardGroup::check_noted() {
  auto looked = std::move(looked_);
  if ((looked.valid() ? looked.get() : fingerprint(shards_)) == noted_)
    newest_ = Newest::kGathered;
  else
    mark_written();
}

void ShardGroup::begin_gather() {
  if (newest_ == Newest::kNoted) check_noted();
  if (state_ != State::kSharded) return;
  if (whole_ || full_numel_ == 0 || (has_memory() && newest_ == Newest::kGathered)) {
    state_ = State::kGathered;
    return;
  }
  const at::NoGradGuard no_grad;
  const auto kept = source();
  // Shards that the device has are sent when they may be newer here.
  const bool sends = device_shards_.defined() && newest_ != Newest::kGathered;
  const auto from = device_shards_.defined() ? device_shards_ : kept;
  const auto send = [sends, kept, from] {
    if (sends) from.copy_(kept, /*non_blocking=*/true);
  };
  LaneWork work{.operation = "fsdp.all_gather"};
  if (!ranks_->process_group()) {
    allocate_full();
    work.used = {kept, from, full_};
    work.before = [send, from, to = full_] {
      send();
      to.copy_(from, /*non_blocking=*/true);
    };
  } else {
    arrived_ = at::empty({ranks_->size() * shard_numel_}, full_.options());
    const bool as_it_is = from.device() == full_.device() && from.scalar_type() == full_.scalar_type();
    const auto mine = as_it_is ? from : arrived_.narrow(0, ranks_->rank() * shard_numel_, shard_numel_);
    work.used = {kept, from, arrived_};
    work.before = [send, as_it_is, from, mine] {
      send();
      if (!as_it_is) mine.copy_(from, /*non_blocking=*/true);
    };
    work.group = ranks_.get();
    work.unit = order_number_;
    work.collective = [mine, all = arrived_](c10d::ProcessGroup& group) {
      auto in = mine, out = all;
      return group._allgather_base(out, in);
    };
  }
  gathering_ = lanes_->run(Lanes::kGather, std::move(work));
  state_ = State::kGathering;
}

void ShardGroup::finish_gather() {
  begin_gather();
  if (state_ == State::kGathered) return;
  const at::NoGradGuard no_grad;
  gathering_.finish();
  if (arrived_.defined()) {
    allocate_full();
    copy_out();
    if (arrived_.is_cpu()) set_memory(arrived_, false);  // a thread of Gloo may hold it a moment longer
    arrived_.reset();
  }
  state_ = State::kGathered;
  newest_ = Newest::kGathered;
}

void ShardGroup::copy_out() {
  const auto columns = arrived_.view({ranks_->size(), shard_numel_});
  for (auto& param : params_)
    each_piece(columns, param.full.view({-1}), param, param.shard_offset,
               [](const Tensor& from, const Tensor& to) { to.copy_(from); });
}

void ShardGroup::release(bool keep_memory) {
  if (state_ == State::kGathering) finish_gather();
  state_ = State::kSharded;
  if (newest_ == Newest::kNoted) newest_ = Newest::kGathered;
  looked_ = {};
  if (!whole_ && !keep_memory && has_memory()) set_memory(full_, false);
}

void ShardGroup::abandon(bool keeps_gradients) {
  for (auto* task : {&gathering_, &reducing_}) {
    try {
      // What a capture has recorded was never started.
      if (!keeps_gradients) task->finish();
    } catch (const std::exception&) {  // it is what ended the pass, or follows from it
    }
    *task = {};
  }
  lanes_->synchronize();
  sending_.clear();
  receiving_.reset();
  update_ = nullptr;
  looked_ = {};
  arrival_ = nullptr;
  arrived_.reset();
  incoming_.reset();
  any_use_.reset();
  state_ = State::kSharded;
  mark_written();
  if (whole_) return;
  // A graph may work on full parameters that keep their memory, and on gradients that are to be reduced.
  if (has_memory() || !keeps_gradients) ++layout_version_;
  if (has_memory()) set_memory(full_, false);
  grads_.reset();
  for (auto& param : params_) {
    param.kept_grad.reset();
    if (!keeps_gradients) param.unreduced.reset();
    param.param.mutable_grad().reset();
  }
  show_shards();
}

}  // namespace levin::detail
