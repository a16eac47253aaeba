#include "levin/fabric/late_flags.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/fabric/fabric.h"

namespace levin::detail {
namespace {

constexpr size_t kTogether = 64;
// A number that is a view of something large would keep that alive.
constexpr size_t kSmallBytes = 4096;

}  // namespace

std::optional<int64_t> LateFlags::add(const at::Tensor& value, int64_t label) {
  const at::NoGradGuard no_grad;
  const auto number = value.detach().reshape({});
  pending_.push_back(number.has_storage() && number.storage().nbytes() > kSmallBytes ? number.clone() : number);
  labels_.push_back(label);
  if (pending_.size() < kTogether) return std::nullopt;
  send();
  return look(/*later=*/1);
}

std::optional<int64_t> LateFlags::finish() {
  send();
  return look(/*later=*/0);
}

void LateFlags::send() {
  if (pending_.empty()) return;
  const at::NoGradGuard no_grad;
  const auto device = pending_.front().device();
  auto bad = at::isfinite(at::stack(pending_)).logical_not();
  if (fabric_ && fabric_->world_size() > 1) bad = fabric_->all_reduce(bad.to(at::kLong), "max").to(at::kBool);
  Sent sent{.values = {}, .labels = std::move(labels_)};
  if (device.is_cuda()) {
    sent.values = at::empty(bad.sizes(), at::TensorOptions().dtype(at::kBool).pinned_memory(true));
    sent.values.copy_(bad, /*non_blocking=*/true);
    sent.arrived.emplace(device.type());
    sent.arrived->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  } else {
    sent.values = bad.cpu();
  }
  sent_.push_back(std::move(sent));
  pending_.clear();
  labels_.clear();
}

std::optional<int64_t> LateFlags::look(size_t later) {
  std::optional<int64_t> found;
  while (sent_.size() > later) {
    const auto& sent = sent_.front();
    if (sent.arrived) sent.arrived->synchronize();
    const auto* bad = sent.values.const_data_ptr<bool>();
    for (size_t i = 0; i < sent.labels.size() && !found; ++i)
      if (bad[i]) found = sent.labels[i];
    sent_.pop_front();
  }
  return found;
}

}  // namespace levin::detail
