#include "levin/strategies/sharding/group.h"

#include <algorithm>
#include <atomic>
#include <filesystem>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <unistd.h>

#include "levin/core/error.h"
#include "levin/devices/host_memory.h"
#include "levin/nn/deferred_init.h"

namespace levin::detail {
namespace {

// Every part begins where vector loads and fused kernels like it.
constexpr int64_t kShardAlignment = 64;

int64_t aligned(int64_t numel) {
  return (numel + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
}

/// A tensor whose storage has no memory yet.
Tensor hollow(int64_t numel, c10::Device device, c10::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  auto storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, at::DataPtr(nullptr, device), c10::GetAllocator(device.type()),
      /*resizable=*/true));
  auto tensor = at::empty({0}, at::TensorOptions(device).dtype(dtype));
  tensor.set_(storage, 0, {numel}, {1});
  return tensor;
}

void set_memory(const Tensor& tensor, bool present) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  const auto bytes = present ? static_cast<size_t>(tensor.numel()) * tensor.element_size() : 0;
  storage->set_data_ptr_noswap(present ? c10::GetAllocator(tensor.device().type())->allocate(bytes)
                                       : at::DataPtr(nullptr, tensor.device()));
  storage->set_nbytes(bytes);
}

}  // namespace

Tensor on_disk(const std::string& folder, int64_t numel, c10::ScalarType dtype) {
  static std::atomic<int> count = 0;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const auto path = std::filesystem::path(folder) / fmt::format(".levin-{}-{}", ::getpid(), count++);
  const auto bytes = static_cast<uintmax_t>(numel) * c10::elementSize(dtype);
  const auto space = std::filesystem::space(folder, error);
  LEVIN_CHECK(!error, "[offload] the folder \"", folder, "\" cannot be used: ", error.message());
  LEVIN_CHECK(space.available > bytes,
              fmt::format("[offload] \"{}\" has {:.1f} GB left, and {:.1f} GB are needed", folder,
                          static_cast<double>(space.available) / 1e9, static_cast<double>(bytes) / 1e9));
  auto tensor = at::from_file(path.string(), /*shared=*/true, numel, at::TensorOptions().dtype(dtype));
  // The mapping keeps it; without a name it is gone when the process ends, however it does.
  std::filesystem::remove(path, error);
  return tensor;
}

namespace {

/// A flat buffer [ranks, part] and a whole tensor, cut into the pieces that correspond: all complete parts together,
/// then the last one when it has fewer rows.
template <class F>
void each_piece(const Tensor& columns, const Tensor& flat_whole, const ShardedParam& param, int64_t offset, F&& f) {
  const int64_t part = param.shard_numel(), numel = flat_whole.numel();
  if (numel == 0) return;
  const int64_t complete = numel / part, rest = numel - complete * part;
  if (complete > 0)
    f(columns.narrow(0, 0, complete).narrow(1, offset, part),
      flat_whole.narrow(0, 0, complete * part).view({complete, part}));
  if (rest > 0) f(columns.select(0, complete).narrow(0, offset, rest), flat_whole.narrow(0, complete * part, rest));
}

}  // namespace

ShardGroup::ShardGroup(std::string name, std::vector<ShardedParam> params, std::shared_ptr<Collective> ranks,
                       std::shared_ptr<Collective> replicas, std::shared_ptr<Lanes> lanes, const GroupOptions& options)
    : name_(std::move(name)),
      params_(std::move(params)),
      ranks_(std::move(ranks)),
      replicas_(std::move(replicas)),
      lanes_(std::move(lanes)),
      options_(options) {
  const at::NoGradGuard no_grad;
  if (!options_.dtype) options_.dtype = params_.front().param.scalar_type();
  if (!options_.param_dtype) options_.param_dtype = options_.dtype;
  if (!options_.reduce_dtype) options_.reduce_dtype = options_.param_dtype;
  if (!options_.grad_dtype) options_.grad_dtype = options_.dtype;
  if (options_.device.is_cpu()) options_.pin_memory = false;
  lay_out();
  whole_ =
      alone() && !options_.offload && options_.param_dtype == options_.dtype && options_.grad_dtype == options_.dtype;
  make_shards();
}

ShardGroup::~ShardGroup() {
  if (!options_.offload) return;
  try {
    lanes_->synchronize();           // page-locked memory goes at once
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
    shard_numel_ += aligned(param.shard_numel());
    full_numel_ += aligned(param.param.numel());
    const int64_t start = std::min<int64_t>(rows, param.rows * ranks_->rank());
    param.place = {param.sizes, start, replicas_->rank() == 0};
  }
}

void ShardGroup::make_shards() {
  const auto device = options_.device;
  const bool needs_copy = options_.offload && options_.param_dtype != options_.dtype;
  if (!whole_) {
    if (options_.offload && !options_.disk_folder.empty())
      shards_ = on_disk(options_.disk_folder, shard_numel_, *options_.dtype);
    else if (options_.offload && !needs_copy)
      shards_ = host_parts(*options_.dtype);
    else
      shards_ = on_large_pages(
          at::empty({shard_numel_}, at::TensorOptions(options_.offload ? at::kCPU : device).dtype(*options_.dtype)));
    shards_.zero_();
    if (needs_copy) host_copy_ = host_parts(*options_.param_dtype);
    full_ = hollow(full_numel_, device, *options_.param_dtype);
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
    param.shard.copy_(value.reshape({rows, -1}).narrow(0, param.place.start, mine).view(shape));
    param.full = full_.narrow(0, param.full_offset, value.numel()).view(param.sizes);
    value.reset();
    param.param.set_data(param.shard);
    param.param.mutable_grad().reset();
  }
  if (!whole_) set_memory(full_, false);
}

/// Room for this rank's part in host memory, from where it is copied to the device.
Tensor ShardGroup::host_parts(c10::ScalarType dtype) const {
  return options_.pin_memory ? page_locked(shard_numel_, dtype)
                             : at::empty({shard_numel_}, at::TensorOptions().dtype(dtype));
}

int64_t ShardGroup::full_bytes() const {
  return full_numel_ * static_cast<int64_t>(c10::elementSize(*options_.param_dtype));
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

// ---- what parameters show

void ShardGroup::show_shards() {
  if (whole_) return;
  for (auto& param : params_) param.param.set_data(param.shard);
}

void ShardGroup::show_full() {
  if (whole_) return;
  for (auto& param : params_) {
    take_over(param);
    param.param.set_data(param.full);
  }
}

// Whoever assigns new data to a parameter (a loader, a user) means this rank's part, or the whole.
void ShardGroup::take_over(ShardedParam& param) {
  const Tensor& now = param.param;
  if (now.is_alias_of(param.full)) return;  // shown already
  if (now.sizes() == param.shard.sizes() && now.scalar_type() == param.shard.scalar_type() &&
      (now.numel() == 0 || now.const_data_ptr() == param.shard.const_data_ptr()))
    return;
  const at::NoGradGuard no_grad;
  stale_ = true;
  copied_versions_ = 0;
  if (now.sizes() == param.shard.sizes()) {
    param.shard.copy_(now.detach());
  } else {
    LEVIN_CHECK(now.sizes() == at::IntArrayRef(param.sizes), "[fsdp] parameter \"", param.name,
                "\" was replaced by a tensor of shape ", fmt::format("{}", now.sizes()), "; this rank's part has ",
                fmt::format("{}", param.shard.sizes()), ", the whole ", fmt::format("{}", param.sizes));
    const int64_t rows = param.sizes.empty() ? 1 : param.sizes[0];
    param.shard.copy_(
        now.detach().reshape({rows, -1}).narrow(0, param.place.start, param.shard.size(0)).view(param.shard.sizes()));
  }
}

void ShardGroup::set_offload(bool offload) {
  if (whole_ || options_.device.is_cpu() || offload == options_.offload) return;
  LEVIN_CHECK(state_ == State::kSharded, "[", name_, "] parts cannot move while they are gathered");
  const at::NoGradGuard no_grad;
  options_.offload = offload;
  const bool needs_copy = offload && options_.param_dtype != options_.dtype;
  lanes_->synchronize();  // page-locked memory goes at once
  const auto moved =
      offload && !needs_copy
          ? host_parts(*options_.dtype)
          : at::empty({shard_numel_}, at::TensorOptions(offload ? at::kCPU : options_.device).dtype(*options_.dtype));
  moved.copy_(shards_);
  shards_ = moved;
  host_copy_ = needs_copy ? host_parts(*options_.param_dtype) : Tensor();
  host_grads_.clear();
  for (auto& param : params_) {
    const bool shown = !param.param.is_alias_of(param.full);
    param.shard = shards_.narrow(0, param.shard_offset, param.shard.numel()).view(param.shard.sizes());
    if (shown) param.param.set_data(param.shard);
  }
  if (grads_.defined()) grads_ = grads_.to(shards_.device());
  copied_versions_ = 0;
  stale_ = true;
}

// ---- gathering

void ShardGroup::allocate_full() {
  if (!has_memory()) set_memory(full_, true);
}

/// This rank's part where and as the gathering wants it.
Tensor ShardGroup::source() {
  if (!host_copy_.defined()) return shards_;
  if (stale_ && (copied_versions_ == 0 || copied_versions_ != versions())) host_copy_.copy_(shards_);
  copied_versions_ = versions();
  return host_copy_;
}

uint64_t ShardGroup::versions() const {
  uint64_t sum = 1;
  for (const auto& param : params_) sum += param.param._version();
  return sum;
}

Tensor ShardGroup::host_copy(size_t i) const {
  if (!host_copy_.defined()) return {};
  const auto& param = params_[i];
  return host_copy_.narrow(0, param.shard_offset, param.shard.numel()).view(param.shard.sizes());
}

void ShardGroup::mark_copied() {
  copied_versions_ = versions();
}

void ShardGroup::begin_gather() {
  if (state_ != State::kSharded) return;
  if (whole_ || (has_memory() && !stale_)) {
    state_ = State::kGathered;
    return;
  }
  const at::NoGradGuard no_grad;
  const auto from = source();
  LaneWork work{.operation = "fsdp.all_gather"};
  if (!ranks_->process_group()) {
    allocate_full();
    work.used = {from, full_};
    work.before = [from, to = full_] { to.copy_(from, /*non_blocking=*/true); };
  } else {
    arrived_ = at::empty({ranks_->size() * shard_numel_}, full_.options());
    const bool as_it_is = from.device() == full_.device() && from.scalar_type() == full_.scalar_type();
    const auto mine = as_it_is ? from : arrived_.narrow(0, ranks_->rank() * shard_numel_, shard_numel_);
    work.used = {from, arrived_};
    if (!as_it_is) work.before = [from, mine] { mine.copy_(from, /*non_blocking=*/true); };
    work.group = ranks_.get();
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
  stale_ = false;
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
  if (!whole_ && !keep_memory && has_memory()) set_memory(full_, false);
}

// ---- gradients

void ShardGroup::lay_out_grads() {
  grad_numel_ = 0;
  for (auto& param : params_) {
    param.grad_offset = param.param.requires_grad() ? grad_numel_ : -1;
    if (param.grad_offset >= 0) grad_numel_ += aligned(param.shard_numel());
  }
}

Tensor ShardGroup::grad_part(const Tensor& flat, const ShardedParam& param) const {
  return flat.narrow(0, param.grad_offset, param.shard.numel()).view(param.shard.sizes());
}

/// The memory of gradients as give_grads handed it out, when all of them are still there, in their places.
Tensor ShardGroup::grads_in_place() const {
  Tensor flat;
  for (const auto& param : params_) {
    const Tensor& grad = param.param.grad();
    if (param.grad_offset < 0) continue;
    if (!grad.defined() || grad.sizes() != param.shard.sizes() || grad.scalar_type() != *options_.grad_dtype) return {};
    if (grad.numel() == 0) continue;
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

/// Room for this rank's part of the gradients. Page-locked memory that nobody holds any more is taken again.
Tensor ShardGroup::empty_grads() {
  const auto options = at::TensorOptions(options_.offload ? at::kCPU : options_.device).dtype(*options_.grad_dtype);
  if (!options_.offload || !options_.pin_memory) return at::empty({grad_numel_}, options);
  for (const auto& room : host_grads_)
    if (room.numel() == grad_numel_ && room.storage().use_count() == 1) {
      if (arrival_) arrival_();  // gradients that nobody waited for may be on their way into it
      return room.detach();
    }
  std::erase_if(host_grads_, [this](const Tensor& room) { return room.numel() != grad_numel_; });
  host_grads_.push_back(page_locked(grad_numel_, *options_.grad_dtype));
  return host_grads_.back().detach();
}

bool ShardGroup::take_grads() {
  if (whole_) return false;
  const at::NoGradGuard no_grad;
  lay_out_grads();
  grads_ = grads_in_place();
  const bool any = std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    return param.grad_offset >= 0 && param.param.grad().defined();
  });
  if (any && !grads_.defined()) {
    grads_ = empty_grads().zero_();
    for (const auto& param : params_) {
      const Tensor& grad = param.param.grad();
      if (param.grad_offset < 0 || !grad.defined()) continue;
      LEVIN_CHECK(grad.sizes() == param.shard.sizes(), "[fsdp] the gradient of \"", param.name, "\" has shape ",
                  fmt::format("{}", grad.sizes()), "; this rank's part has ", fmt::format("{}", param.shard.sizes()));
      grad_part(grads_, param).copy_(grad);
    }
  }
  bool unreduced = false;
  for (auto& param : params_) {
    unreduced = unreduced || param.unreduced.defined();
    param.param.mutable_grad() = param.unreduced;
    param.unreduced.reset();
  }
  return unreduced;
}

void ShardGroup::begin_reduce() {
  if (whole_) return;
  const at::NoGradGuard no_grad;
  if (alone())
    reduce_alone();
  else
    reduce_over_ranks();
}

// Nobody else has gradients: they are cast, or brought to the host.
void ShardGroup::reduce_alone() {
  LaneWork work{.operation = "fsdp.reduce"};
  std::vector<std::pair<Tensor, const ShardedParam*>> grads;
  for (auto& param : params_) {
    auto& grad = param.param.mutable_grad();
    if (param.grad_offset < 0 || !grad.defined()) continue;
    grads.emplace_back(grad.layout() == at::kStrided ? grad : grad.to_dense(), &param);
    work.used.push_back(grads.back().first);
    grad.reset();
  }
  if (grads.empty()) return;
  const bool first = !grads_.defined();
  auto into = empty_grads();
  if (grads.size() < static_cast<size_t>(std::count_if(params_.begin(), params_.end(),
                                                       [](const auto& param) { return param.grad_offset >= 0; })))
    into.zero_();
  if (first)
    grads_ = into;
  else
    incoming_ = into;
  work.used.push_back(into);
  work.before = [this, grads, into] {
    for (const auto& [grad, param] : grads) grad_part(into, *param).copy_(grad, /*non_blocking=*/true);
  };
  reducing_ = lanes_->run(Lanes::kReduce, std::move(work));
}

Tensor ShardGroup::pack_grads(double scale) {
  const int64_t ranks = ranks_->size();
  const auto options = at::TensorOptions(options_.device).dtype(*options_.reduce_dtype);
  const auto packed = at::zeros({ranks, grad_numel_}, options);
  for (auto& param : params_) {
    auto& grad = param.param.mutable_grad();
    if (param.grad_offset < 0 || !grad.defined()) continue;
    auto whole = (grad.layout() == at::kStrided ? grad : grad.to_dense()).contiguous().view({-1});
    if (scale != 1) whole = whole.mul(scale);
    each_piece(packed, whole, param, param.grad_offset, [](const Tensor& to, const Tensor& from) { to.copy_(from); });
    grad.reset();
  }
  return packed.view({-1});
}

void ShardGroup::reduce_over_ranks() {
  if (grad_numel_ == 0) return;
  const double mean = 1.0 / (ranks_->size() * replicas_->size());
  // A sum of float16 gradients may be too large for it where their mean is not.
  const bool before = options_.reduce_dtype == at::kHalf;
  const auto all = pack_grads(before ? mean : 1);
  // Gloo sums everything on every rank, in a copy that lives until a thread of its own lets go of it. Summed in place,
  // there is one buffer, and it goes when this says so.
  const auto process_group = ranks_->process_group();
  const bool in_place = process_group && process_group->getBackendType() == c10d::ProcessGroup::GLOO;
  auto mine = in_place || !process_group ? all.narrow(0, ranks_->rank() * grad_numel_, grad_numel_)
                                         : at::empty({grad_numel_}, all.options());
  LaneWork work{.operation = "fsdp.reduce_scatter", .used = {all, mine}, .group = ranks_.get()};
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
  work.after = [this, all, mine, in_place, factor = before ? 1 : mean] {
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
    // Widened first, so that nothing is lost in the division.
    if (options_.grad_dtype != options_.reduce_dtype && !options_.offload) reduced = reduced.to(*options_.grad_dtype);
    if (factor != 1) reduced.mul_(factor);
    add_grads(reduced);
  };
  reducing_ = lanes_->run(Lanes::kReduce, std::move(work));
}

void ShardGroup::add_grads(const Tensor& reduced) {
  if (!options_.offload) {
    if (grads_.defined())
      grads_.add_(reduced);
    else
      grads_ = reduced;
    return;
  }
  auto into = empty_grads();
  into.copy_(reduced, /*non_blocking=*/true);
  if (grads_.defined())
    incoming_ = into;
  else
    grads_ = into;
}

void ShardGroup::finish_reduce(bool on_host) {
  if (reducing_.pending()) arrival_ = reducing_.finish();
  if (options_.offload && !on_host) return;
  if (options_.offload && arrival_) arrival_();
  settle_host();
}

void ShardGroup::settle_host() {
  arrival_ = nullptr;
  if (!incoming_.defined()) return;
  const at::NoGradGuard no_grad;
  grads_.add_(incoming_);
  incoming_.reset();
}

void ShardGroup::keep_unreduced() {
  if (whole_) return;
  for (auto& param : params_) {
    param.unreduced = param.param.grad();
    param.param.mutable_grad().reset();
  }
}

void ShardGroup::give_grads() {
  if (whole_) return;
  for (auto& param : params_) {
    if (param.grad_offset < 0 || !grads_.defined())
      param.param.mutable_grad().reset();
    else
      param.param.mutable_grad() = grad_part(grads_, param);
  }
  grads_.reset();  // they are the parameters' now, and go when those are set to none
}

void ShardGroup::abandon() {
  for (auto* task : {&gathering_, &reducing_}) {
    try {
      task->finish();
    } catch (const std::exception&) {  // it is what ended the pass, or follows from it
    }
  }
  lanes_->synchronize();
  arrival_ = nullptr;
  arrived_.reset();
  incoming_.reset();
  state_ = State::kSharded;
  stale_ = true;
  if (whole_) return;
  if (has_memory()) set_memory(full_, false);
  grads_.reset();
  for (auto& param : params_) {
    param.unreduced.reset();
    param.param.mutable_grad().reset();
  }
  show_shards();
}

}  // namespace levin::detail
