#include "levin/memory/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "levin/strategies/sharding/group_memory.h"

namespace levin::detail {

bool GroupFigures::whole() const {
  return ranks == 1 && replicas == 1 && !offload && computed == kept && gradient == kept;
}

bool MeteredGroup::whole() const {
  auto figures = ledger_.figures;
  figures.ranks = ranks();
  return figures.whole();
}

void GroupLedger::give_to_gloo() {
  if (!figures.gloo) return;
  for (auto* next : waiting) {
    if (busy == kGlooThreads) return;
    if (std::exchange(next->at_gloo_, true)) continue;
    ++busy;
    arrived += next->arrived_bytes();
  }
}

MeteredGroup::MeteredGroup(GroupLedger& ledger, const GroupSizes& sizes)
    : ledger_(ledger), sizes_(sizes), has_memory_(ledger.figures.keeps_full) {}

void MeteredGroup::begin_step(bool stale) {
  stale_ = stale;
  if (state_ == State::kGathered) ledger_.gathered += full_bytes();  // it stayed
  has_gradient_ = has_reduced_ = has_sum_ = receives_ = false;
  full_gradients_ = 0;
  large_gradients_.clear();
}

// ---- parameters

void MeteredGroup::begin_gather() {
  if (state_ != State::kSharded) return;
  if (whole() || (has_memory_ && !stale_)) {
    state_ = State::kGathered;
    return;
  }
  state_ = State::kGathering;
  if (ranks() == 1) {
    if (!std::exchange(has_memory_, true)) ledger_.gathered += full_bytes();
    return;
  }
  ledger_.arrived += arrived_bytes();
  ledger_.waiting.push_back(this);
  ledger_.give_to_gloo();
  ledger_.note();
}

void MeteredGroup::finish_gather() {
  begin_gather();
  if (state_ == State::kGathered) return;
  state_ = State::kGathered;
  stale_ = false;
  if (ranks() == 1) return;
  // Gloo's own buffer is freed when it has done its work, and the thread takes on the next.
  if (std::exchange(at_gloo_, false)) {
    --ledger_.busy;
    ledger_.arrived -= arrived_bytes();
  }
  std::erase(ledger_.waiting, this);
  ledger_.give_to_gloo();
  if (!std::exchange(has_memory_, true)) ledger_.gathered += full_bytes();
  ledger_.note();
  ledger_.arrived -= arrived_bytes();
}

void MeteredGroup::release(bool keep_memory) {
  if (state_ == State::kGathering) finish_gather();
  state_ = State::kSharded;
  if (!keep_memory && std::exchange(has_memory_, false)) ledger_.gathered -= full_bytes();
}

// ---- gradients

void MeteredGroup::add_gradient(int64_t bytes) {
  if (whole()) {
    ledger_.gradients += bytes;
    return;
  }
  has_gradient_ = true;
  full_gradients_ += bytes;
  ledger_.full_gradients += bytes;
  if (bytes < kLeavesAlone) return;
  large_gradients_.push_back(bytes);
  // It leaves at once, into memory for all of the group.
  const auto& figures = ledger_.figures;
  if (figures.offload && alone() && !figures.updates_in_place && !std::exchange(receives_, true)) keep_reduced();
}

/// Bytes of gradients that are in host memory when the backward of the unit ends.
int64_t MeteredGroup::arrived_gradients() const {
  if (!ledger_.figures.offload) return 0;
  const auto arrived = static_cast<std::ptrdiff_t>(arrived_with_unit(large_gradients_));
  return std::accumulate(large_gradients_.begin(), large_gradients_.begin() + arrived, int64_t{0});
}

void MeteredGroup::begin_reduce() {
  const auto& figures = ledger_.figures;
  if (whole()) return;
  if (alone() && !figures.updates_in_place && full_gradients_ == 0) return;  // of activations alone
  if (figures.updates_in_place) {
    // Nothing is kept of gradients.
  } else if (alone()) {
    // Cast, or copied to the host; the full gradients are held until that is done.
    if (!std::exchange(receives_, false)) keep_reduced();
    ledger_.sent += full_gradients_ - arrived_gradients();
  } else {
    ledger_.sent += figures.bytes(ranks() * sizes_.grad, figures.reduced);
    ledger_.note();
    // Over NCCL the shard has a place of its own, and is promoted as soon as it is known when it will be there.
    if (!figures.gloo && ranks() > 1) {
      ledger_.sent += figures.bytes(sizes_.grad, figures.reduced);
      if (figures.gradient != figures.reduced) keep_reduced();
    }
  }
  ledger_.full_gradients -= std::exchange(full_gradients_, 0);
  has_gradient_ = false;
  ledger_.note();
}

void MeteredGroup::finish_reduce() {
  const auto& figures = ledger_.figures;
  if (whole()) return;
  if (!alone()) {
    const bool promoted = figures.gradient != figures.reduced && !figures.offload;
    if (figures.gloo || ranks() == 1) {
      // The shard is copied out of the buffer, which is freed then, and promoted.
      if (ranks() > 1) ledger_.sent += figures.bytes(sizes_.grad, figures.reduced);
      ledger_.note();
      if (ranks() > 1) ledger_.sent = figures.bytes(sizes_.grad, figures.reduced);
      if (promoted) {
        keep_reduced();
        ledger_.note();
      }
    }
    if (!promoted) keep_reduced();
    if (figures.offload) ledger_.note();
  }
  ledger_.sent = 0;
  ledger_.note();
  if (figures.steps_in_backward) ledger_.gradients = ledger_.host_gradients = 0;
}

void MeteredGroup::keep_reduced() {
  const bool offload = ledger_.figures.offload, adds = std::exchange(has_reduced_, true);
  const auto bytes = ledger_.figures.bytes(sizes_.grad, ledger_.figures.gradient);
  if (adds && !std::exchange(has_sum_, true))
    (offload ? ledger_.host_gradients : ledger_.gradients) += sum_bytes() - bytes;
  if (!offload)
    (adds ? ledger_.sent : ledger_.gradients) += bytes;
  else if (!adds)
    ledger_.host_gradients += bytes;
  else if (ledger_.figures.gloo)
    ledger_.host_incoming += bytes;
  else if (!std::exchange(has_room_, true))
    ledger_.host_rooms += bytes;
}

int64_t MeteredGroup::sum_bytes() const {
  return ledger_.figures.bytes(sizes_.grad, std::max(ledger_.figures.gradient, ledger_.figures.accumulated));
}

void MeteredGroup::keep_sum() {
  has_reduced_ = has_sum_ = true;
  (ledger_.figures.offload ? ledger_.host_gradients : ledger_.gradients) += sum_bytes();
}

void MeteredGroup::compare() {
  const auto& figures = ledger_.figures;
  if (whole() || !has_memory_ || stale_ || figures.offload) return;
  // A copy of the shards with the values of the full parameters; and one in their dtype.
  const auto bytes = figures.bytes(sizes_.shard, figures.computed) * (figures.computed == figures.kept ? 1 : 2);
  ledger_.sent += bytes;
  ledger_.note();
  ledger_.sent -= bytes;
}

}  // namespace levin::detail
