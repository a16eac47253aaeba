#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ATen/Functions.h>

#include "levin/devices/hollow_memory.h"
#include "levin/strategies/sharding/group.h"

namespace levin::detail {

/// Every shard begins where vector loads and fused kernels like it.
inline int64_t aligned_part(int64_t numel) {
  constexpr int64_t kAlignment = 64;
  return (numel + kAlignment - 1) / kAlignment * kAlignment;
}

/// Gradients of at least this many bytes leave for host memory one by one, as they come; the others with their unit.
inline constexpr int64_t kLeavesAlone = 1 << 18;
/// When the backward of a unit ends, at most half of what has left one by one may still be on its way, or the last of
/// it: how many of those gradients, the oldest first, have to be there.
size_t arrived_with_unit(std::span<const int64_t> bytes);

/// Of all bytes of a contiguous tensor in host memory, a multiple of 8. Other values have another one, but for an
/// accident of 1 in 2^60.
uint64_t fingerprint(const Tensor& tensor);

/// A flat buffer [ranks, shard] and a full tensor, cut into the pieces that correspond: all complete shards together,
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

}  // namespace levin::detail
