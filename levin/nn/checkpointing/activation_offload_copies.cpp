#include "levin/nn/checkpointing/activation_offload_copies.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/core/error.h"
#include "levin/devices/graphs.h"
#include "levin/devices/streams.h"

namespace levin::detail {
namespace {

/// A tensor over the memory of a storage.
Tensor over_storage(const c10::Storage& storage, c10::Device device, c10::ScalarType dtype, int64_t offset,
                    c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return at::empty({0}, at::TensorOptions().dtype(dtype).device(device)).set_(storage, offset, sizes, strides);
}

Tensor bytes_of(const c10::Storage& storage, c10::Device device) {
  return over_storage(storage, device, c10::kByte, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

/// A small view of a big storage goes alone.
constexpr int64_t kWholeStorage = 8;

}  // namespace

void HostMemory::drop() noexcept {
  // Memory that nobody waited for may still be written to; what reuses it must come later.
  if (back.defined() && arrived) arrived->block(current_stream(device));
  arrived.reset();
  back.reset();
}

// ---- HostCopy

HostCopy::HostCopy(std::shared_ptr<HostCopies> owner, std::shared_ptr<HostMemory> memory, const Tensor& tensor,
                   size_t group)
    : owner_(std::move(owner)),
      memory_(std::move(memory)),
      sizes_(tensor.sizes().vec()),
      strides_(tensor.strides().vec()),
      offset_(tensor.storage_offset()),
      dtype_(tensor.scalar_type()),
      group_(group) {}

HostCopy::~HostCopy() {
  owner_->release(*this);
}

Tensor HostCopy::get() {
  return owner_->get(*this);
}

// ---- to the host

void HostCopies::begin_group() {
  const std::lock_guard lock(mutex_);
  ++group_;
  current_.reset();
}

std::unique_ptr<HostCopy> HostCopies::put(const Tensor& tensor) {
  refuse_capture("activations are kept in host memory");
  if (!tensor.has_storage() || tensor.layout() != c10::kStrided || tensor.is_meta() ||
      static_cast<int64_t>(tensor.nbytes()) < options_.min_bytes)
    return nullptr;
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  auto whole = tensor;
  if (static_cast<int64_t>(tensor.nbytes()) * kWholeStorage < static_cast<int64_t>(tensor.storage().nbytes()))
    whole = tensor.detach().clone();
  const auto* source = whole.storage().unsafeGetStorageImpl();
  auto& known = by_source_[source];
  auto memory = known.lock();
  if (!memory || memory->source.expired() || memory->version != whole._version()) {
    memory = copy_out(whole);
    known = memory;
  }
  if (memory->users[group_]++ == 0) groups_[group_].push_back(memory);
  return std::make_unique<HostCopy>(shared_from_this(), memory, whole, group_);
}

std::shared_ptr<HostMemory> HostCopies::copy_out(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  const auto device = tensor.device();
  const auto source = bytes_of(storage, device);
  const bool streams = has_streams(device);
  const auto options = at::TensorOptions().dtype(c10::kByte).pinned_memory(streams && options_.pin_memory);
  auto memory = std::make_shared<HostMemory>(at::empty({source.numel()}, options), device, storage.getWeakStorageImpl(),
                                             storage.unsafeGetStorageImpl(), tensor._version());
  if (!streams) {
    memory->host.copy_(source);
    return memory;
  }
  const auto compute = current_stream(device);
  const auto side = side_stream(device);
  order_after(side, compute);
  c10::Event done(device.type());
  {
    const c10::StreamGuard on_side(side);
    memory->host.copy_(source, /*non_blocking=*/true);
    done.record(side);
  }
  in_flight_.push_back({storage, std::move(done), compute});
  let_go();
  return memory;
}

/// Memory of the device is free for the computation again when its copy is done, or when the computation was told to
/// wait for that.
void HostCopies::let_go() {
  while (!in_flight_.empty() && in_flight_.front().done.query()) in_flight_.pop_front();
  while (in_flight_.size() > static_cast<size_t>(options_.max_in_flight)) {
    in_flight_.front().done.block(in_flight_.front().compute);
    in_flight_.pop_front();
  }
}

c10::Stream HostCopies::side_stream(c10::Device device) {
  for (const auto& stream : streams_)
    if (stream.device() == device) return stream;
  streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
  return streams_.back();
}

// ---- and back

Tensor HostCopies::get(HostCopy& copy) {
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_grad(false);
  // The forward is over: what is still on its way is waited for by the stream that brings it back.
  while (!in_flight_.empty()) {
    in_flight_.front().done.block(in_flight_.front().compute);
    in_flight_.pop_front();
  }
  auto& memory = *copy.memory_;
  c10::Storage storage;
  if (auto seen = memory.seen.lock(); seen && !memory.back.defined()) {
    storage = c10::Storage(std::move(seen));
  } else {
    if (current_ != copy.group_) {
      current_ = copy.group_;
      bring_back_group(copy.group_);
      const auto here = groups_.find(copy.group_);
      if (here != groups_.end() && here != groups_.begin()) bring_back_group(std::prev(here)->first);
    }
    bring_back(memory, copy.group_);
    if (memory.arrived) {
      memory.arrived->block(current_stream(memory.device));
      memory.arrived.reset();
    }
    storage = memory.back.storage();
    memory.seen = storage.getWeakStorageImpl();
    if (copy.group_ == memory.group && std::exchange(copy.taken_, memory.trip) != memory.trip && --memory.left <= 0)
      memory.drop();
  }
  return over_storage(storage, memory.device, copy.dtype_, copy.offset_, copy.sizes_, copy.strides_);
}

void HostCopies::bring_back_group(size_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  // Backward needs the last first.
  for (auto each = found->second.rbegin(); each != found->second.rend(); ++each)
    if (const auto memory = each->lock(); memory && memory->seen.expired()) bring_back(*memory, group);
}

void HostCopies::bring_back(HostMemory& memory, size_t group) {
  if (memory.back.defined()) return;
  const auto device = memory.device;
  ++memory.trip;
  memory.group = group;
  memory.left = memory.users[group];
  // Born on the stream that will use it, so that its memory returns to where the rest of backward can have it.
  memory.back = at::empty({memory.host.numel()}, at::TensorOptions().dtype(c10::kByte).device(device));
  if (!has_streams(device)) {
    memory.back.copy_(memory.host);
    return;
  }
  const auto side = side_stream(device);
  order_after(side, current_stream(device));
  const c10::StreamGuard on_side(side);
  memory.back.copy_(memory.host, /*non_blocking=*/true);
  memory.arrived.emplace(device.type());
  memory.arrived->record(side);
}

void HostCopies::release(HostCopy& copy) noexcept {
  const std::lock_guard lock(mutex_);
  auto& memory = *copy.memory_;
  if (memory.back.defined() && memory.group == copy.group_ && copy.taken_ != memory.trip && --memory.left <= 0)
    memory.drop();
  if (--memory.users[copy.group_] == 0) memory.users.erase(copy.group_);
  const auto known = by_source_.find(memory.key);
  if (copy.memory_.use_count() == 1 && known != by_source_.end() && known->second.lock() == copy.memory_)
    by_source_.erase(known);
  copy.memory_.reset();
  const auto group = groups_.find(copy.group_);
  if (group != groups_.end() &&
      std::all_of(group->second.begin(), group->second.end(), [](const auto& each) { return each.expired(); }))
    groups_.erase(group);
}

}  // namespace levin::detail
