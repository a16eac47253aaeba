#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "levin/memory/meter.h"
#include "levin/strategies/sharding/scheduled_group.h"

namespace levin::detail {

/// How groups of sharded parameters are kept.
struct GroupFigures {
  int ranks = 1;
  int replicas = 1;
  /// Full parameters keep their memory between steps.
  bool keeps_full = false;
  /// This rank's shards of parameters and gradients are in host memory.
  bool offload = false;
  /// Gradients are used, and freed, as they are reduced.
  bool steps_in_backward = false;
  /// ... on the device, where full parameters are, which are copied to the host then.
  bool updates_in_place = false;
  /// Collectives are Gloo's.
  bool gloo = false;
  /// Bytes of an element: of the shard, gathered, while it is reduced, of a gradient that is kept, and of those of
  /// micro-batches as they are added.
  int64_t kept = 4, computed = 4, reduced = 4, gradient = 4, accumulated = 4;
  Rounding rounding = Rounding::kNone;

  /// One rank, on its device, in its dtype: nothing has to be done.
  bool whole() const;
  int64_t bytes(int64_t elements, int64_t width) const { return round_allocation(elements * width, rounding); }
};

/// Elements of a group: this rank's shard, the full parameters, and this rank's shard of their gradients.
struct GroupSizes {
  /// Number of ranks over which it is sharded; 0: that of the figures.
  int ranks = 0;
  int64_t shard = 0;
  int64_t full = 0;
  int64_t grad = 0;
};

class MeteredGroup;

/// Bytes that the groups of a module take at this moment, besides what they always take.
struct GroupLedger {
  GroupFigures figures;
  /// Called whenever the sum may be at its highest.
  std::function<void()> note;
  int64_t gathered = 0;
  /// Shards of all ranks, until the full parameters are put together from them.
  int64_t arrived = 0;
  /// Gradients that are being reduced.
  int64_t sent = 0;
  int64_t full_gradients = 0;
  int64_t gradients = 0;
  int64_t host_gradients = 0;
  /// Gradients in host memory that are added to those that are there when the backward ends.
  int64_t host_incoming = 0;
  /// Pinned memory of such gradients, which is kept.
  int64_t host_rooms = 0;

  /// Each of Gloo's threads gathers into a buffer of its own and copies from there.
  static constexpr int kGlooThreads = 2;
  std::vector<MeteredGroup*> waiting = {};  // groups that are being gathered
  int busy = 0;                             // threads of Gloo that gather

  void give_to_gloo();
};

/// A group of which only the bytes are counted, as ShardGroup would allocate and free them.
class MeteredGroup final : public ScheduledGroup {
 public:
  MeteredGroup(GroupLedger& ledger, const GroupSizes& sizes);

  int64_t full_numel() const override { return sizes_.full; }
  bool trained() const override { return sizes_.grad > 0; }
  void begin_gather() override;
  void finish_gather() override;
  void release(bool keep_memory = false) override;
  bool updates_in_place() const override { return ledger_.figures.updates_in_place; }
  void begin_reduce() override;
  void finish_reduce() override;

  /// A step begins. `stale`: full parameters that stay are out of date.
  void begin_step(bool stale);
  /// A full gradient of one of its parameters was allocated.
  void add_gradient(int64_t bytes);
  /// One that is to come is the first of a backward, and has to be reduced in the end.
  bool expects_gradient() const { return !has_gradient_ && !whole(); }
  /// No other rank has it, and nothing has to be done: parameters and gradients stay where they are.
  bool whole() const;
  /// A reduced gradient is allocated, or added to what is there: that of a micro-batch before.
  void keep_reduced();
  /// The sum of those of micro-batches before is there.
  void keep_sum();
  int64_t sum_bytes() const;
  /// Full parameters that stay are compared with the shards: a forward begins, and nobody has said that they changed.
  void compare();

 private:
  friend struct GroupLedger;
  int64_t full_bytes() const { return ledger_.figures.bytes(sizes_.full, ledger_.figures.computed); }
  int64_t arrived_bytes() const { return ledger_.figures.bytes(ranks() * sizes_.shard, ledger_.figures.computed); }
  int ranks() const { return sizes_.ranks > 0 ? sizes_.ranks : ledger_.figures.ranks; }
  bool alone() const { return ranks() * ledger_.figures.replicas == 1; }
  int64_t arrived_gradients() const;

  GroupLedger& ledger_;
  GroupSizes sizes_;
  bool has_memory_;
  bool stale_ = true;
  bool at_gloo_ = false;
  bool has_gradient_ = false, has_reduced_ = false, has_sum_ = false, has_room_ = false, receives_ = false;
  int64_t full_gradients_ = 0;
  std::vector<int64_t> large_gradients_ = {};  // as they came; to host memory they leave one by one
};

}  // namespace levin::detail
