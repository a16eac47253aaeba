#include "levin/trainer/loss_watch.h"

#include <cmath>
#include <cstdio>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "levin/core/error.h"
#include "levin/core/log.h"
#include "levin/fabric/fabric.h"
#include "levin/trainer/cpu_number.h"

namespace levin::detail {
namespace {

constexpr size_t kTogether = 64;
// A loss that is a view of something large would keep that alive.
constexpr size_t kSmallBytes = 4096;

}  // namespace

void LossWatch::add(const at::Tensor& loss, int64_t epoch, int64_t batch) {
  ++steps_;
  if (!loss.defined()) return;
  ++losses_;
  if (found_ || loss.numel() != 1 || loss.is_meta() || loss.is_complex()) return;
  if (loss.is_cpu()) {
    if (!std::isfinite(cpu_number(loss))) note(epoch, batch);
    return;
  }
  const at::NoGradGuard no_grad;
  const auto value = loss.detach().reshape({});
  pending_.push_back(value.has_storage() && value.storage().nbytes() > kSmallBytes ? value.clone() : value);
  batches_.push_back(batch);
  if (pending_.size() < kTogether) return;
  send(epoch);
  look(/*later=*/1);
}

void LossWatch::end_epoch(int64_t epoch, bool trains) {
  send(epoch);
  look(/*later=*/0);
  if (trains && steps_ > 0 && losses_ == 0 && !warned_none_) {
    warned_none_ = true;
    log_warning(concat("[trainer] training_step returned no loss in any of the ", steps_, " batches of epoch ", epoch,
                       ": nothing was trained; return the loss, or set automatic_optimization = false"));
  }
  steps_ = losses_ = 0;
}

void LossWatch::send(int64_t epoch) {
  if (pending_.empty()) return;
  const at::NoGradGuard no_grad;
  const auto device = pending_.front().device();
  auto bad = at::isfinite(at::stack(pending_)).logical_not();
  if (fabric_ && fabric_->world_size() > 1) bad = fabric_->all_reduce(bad.to(at::kLong), "max").to(at::kBool);
  Flags flags{.values = {}, .batches = std::move(batches_), .epoch = epoch};
  if (device.is_cuda()) {
    flags.values = at::empty(bad.sizes(), at::TensorOptions().dtype(at::kBool).pinned_memory(true));
    flags.values.copy_(bad, /*non_blocking=*/true);
    flags.arrived.emplace(device.type());
    flags.arrived->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  } else {
    flags.values = bad.cpu();
  }
  sent_.push_back(std::move(flags));
  pending_.clear();
  batches_.clear();
}

void LossWatch::look(size_t later) {
  while (sent_.size() > later) {
    const auto& flags = sent_.front();
    if (flags.arrived) flags.arrived->synchronize();
    const auto* bad = flags.values.const_data_ptr<bool>();
    for (size_t i = 0; i < flags.batches.size() && !found_; ++i)
      if (bad[i]) note(flags.epoch, flags.batches[i]);
    sent_.pop_front();
  }
}

void LossWatch::note(int64_t epoch, int64_t batch) {
  found_ = {epoch, batch};
  if (!warns_) return;
  const int rank = fabric_ ? fabric_->global_rank() : 0;
  const auto line = concat("[trainer] the loss is nan or inf in epoch ", epoch, ", batch ", batch,
                           ", and may be so in later ones; detect_anomaly = true finds the operation that gave it");
  // The log has the lines of rank 0 alone, and other ranks have other batches.
  if (rank == 0)
    log_warning(line);
  else
    std::fprintf(stderr, "levin: warning: rank %d: %s\n", rank, line.c_str());
}

}  // namespace levin::detail
