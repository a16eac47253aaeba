#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "levin/checkpoint/shards.h"
#include "levin/core/worker_thread.h"
#include "levin/distributed/collective.h"
#include "levin/strategies/sharding/lanes.h"
#include "levin/strategies/sharding/scheduled_group.h"

namespace levin::detail {

/// A parameter that is spread over ranks. The user's tensor itself (`param`) alternates: between steps it is this
/// rank's shard; from forward to the end of backward it is the full one, with or without memory behind it.
struct ShardedParam {
  std::string name;
  Tensor param;
  /// Of the full parameter.
  std::vector<int64_t> sizes = {};
  /// Rows of the first dimension on each rank (the last ones may have fewer, or none), and elements of a row.
  int64_t rows = 0;
  int64_t row_numel = 0;
  /// First element in the group's memory of one rank, and in that of the full parameters.
  int64_t shard_offset = 0;
  int64_t full_offset = 0;
  /// In the memory of gradients; -1: it gets none.
  int64_t grad_offset = -1;
  /// This rank's shard: a view of the group's memory.
  Tensor shard = {};
  /// The full parameter: a view of storage that has memory only while the group is gathered.
  Tensor full = {};
  /// Gradients of the full parameter that were accumulated without reducing them. In a compiled step that accumulates
  /// it keeps its memory, and is zero after a reduction.
  Tensor unreduced = {};
  /// Its gradient of this backward has left for host memory.
  bool sent = false;
  /// In such a step, during a backward: this rank's gradient, to which is added where it is.
  Tensor kept_grad = {};
  ShardPlace place = {};

  int64_t shard_numel() const { return rows * row_numel; }
};

/// How the parameters of a group are kept.
struct GroupOptions {
  c10::Device device = at::kCPU;
  /// Of the shards; none: the dtype that the parameters have.
  std::optional<c10::ScalarType> dtype = {};
  /// The shards and their gradients live in host memory.
  bool offload = false;
  /// What is copied to the device, and gradients that come from it, are in pinned host memory.
  bool pin_memory = true;
  bool pin_gradients = true;
  /// With `offload`: the device has the shards too, as they are computed with, and gathers them from there.
  bool keeps_device_shards = false;
  /// The shards live in files of this folder, of which host memory is a cache; empty: in host memory. With `offload`.
  std::string disk_folder = {};
  /// Of gathered parameters, and in which gradients are reduced; none: the dtype of the shards.
  std::optional<c10::ScalarType> param_dtype = {};
  std::optional<c10::ScalarType> reduce_dtype = {};
  /// Of reduced gradients of one backward; none: the dtype of the shards.
  std::optional<c10::ScalarType> grad_dtype = {};
  /// In which gradients of several backwards are added, reduced or not; none: the dtype of the shards.
  std::optional<c10::ScalarType> accumulate_dtype = {};
  /// Rank 0's values count.
  bool broadcast = true;
  /// Reductions also tell whether any rank had a gradient: groups are reduced that this rank did not use.
  bool tells_use = false;
};

/// Which copies of a group's parameters have the newest values. Between passes the shards have, which anybody may write
/// then; the others are the full parameters and, where shards in host memory have another dtype than the computation,
/// the host copy that is sent to the device.
enum class Newest : uint8_t {
  /// The shards, and all ranks know that theirs are: nothing was gathered yet, or a step is to follow the gradients.
  kAllShards,
  /// This rank's shards: somebody has written them, an optimizer perhaps together with the host copy.
  kOwnShards,
  /// The full parameters too, since they were gathered; a write behind versions since then is found by its values.
  kGathered,
  /// The full parameters too, from which the shards were copied; a write since then is found by the fingerprint.
  kNoted,
};

/// Parameters that are gathered and reduced together: one all-gather, one reduce-scatter.
///
/// All memory is taken and given back on the compute stream; other streams wait for it and are waited for. So what is
/// in memory at one time does not depend on timing.
class ShardGroup final : public ScheduledGroup {
 public:
  /// Takes this rank's shards of parameters that every rank has in full (or deferred: they are made here), and frees
  /// the full ones. `ranks` have the shards; `replicas` are the ranks that have the same shard. All parameters have one
  /// dtype. `compared_numel` stands for the number of elements where all ranks compare what they call; 0: that of the
  /// full parameters. (Ranks that have other experts may have more or fewer.)
  ShardGroup(std::string name, std::vector<ShardedParam> params, std::shared_ptr<Collective> ranks,
             std::shared_ptr<Collective> replicas, std::shared_ptr<Lanes> lanes, const GroupOptions& options,
             int64_t compared_numel = 0);
  ~ShardGroup() override;
  ShardGroup(const ShardGroup&) = delete;
  ShardGroup& operator=(const ShardGroup&) = delete;

  const std::string& name() const { return name_; }
  std::vector<ShardedParam>& params() { return params_; }
  const std::vector<ShardedParam>& params() const { return params_; }
  /// Bytes of the full parameters in the dtype in which they are gathered, and of this rank's shards as they are kept.
  int64_t full_bytes() const;
  /// Bytes of an element of the full parameters.
  int64_t element_size() const;
  int64_t full_numel() const override { return full_numel_; }
  int64_t shard_bytes() const;
  const GroupOptions& options() const { return options_; }
  bool trained() const override;
  /// One rank, on its device, in its dtype: the shards are the full parameters, and nothing has to be done.
  bool whole() const { return whole_; }
  /// Nobody to communicate with.
  bool alone() const;
  /// To gather it is one copy from pinned memory.
  bool is_copied_alone() const;

  /// What parameters show: this rank's shard, or the full one. A shard that somebody has replaced or changed is taken
  /// over.
  void show_shards();
  void show_full();
  void take_over_shards();

  /// Moves this rank's shards, with their gradients, to host memory or to the device; between steps, when nothing is
  /// gathered. What optimizers keep for it is to follow.
  void set_offload(bool offload);

  void begin_gather() override;
  void finish_gather() override;
  void release(bool keep_memory = false) override;
  Newest newest() const { return newest_; }
  /// This rank's shards may have been written.
  void mark_written();
  /// All ranks gather again.
  void renew() { newest_ = Newest::kOwnShards; }
  /// Gradients were reduced, on all ranks: a step is to follow.
  void expect_step();
  /// Whether the full parameters are allocated now.
  bool has_memory() const;
  /// Between passes: whether the full parameters in memory are not those of the shards as they are now. By their
  /// values, where nobody has said so: whoever writes through data() leaves no trace in versions. Reads this rank's
  /// shards once.
  bool outdated();

  /// Before a backward: gradients that are there are put aside. True when some of them are still to be reduced.
  bool take_grads();
  /// The gradient of parameter `i` is complete. Where nobody has to be asked, a large one leaves for host memory now;
  /// others do in begin_reduce.
  void send_grad(size_t i);
  /// Sums the gradients of the full parameters over the ranks and adds this rank's shard to what is there.
  void begin_reduce() override;
  /// Gradients that go to host memory may still be on their way there.
  void finish_reduce() override;
  /// The host waits for them, too.
  void finish_reduce_on_host();
  /// ... for a group in host memory, when its gradients have arrived there.
  void settle_host();
  /// For this backward, after take_grads: `step` steps the full parameters by their gradients. Then nothing goes to
  /// host memory but the new values. Null, or not possible: gradients are reduced.
  void set_update(std::function<void()> step);
  bool updates_in_place() const override { return update_ != nullptr; }
  /// The full parameters in memory are those that the shards in host memory have now. Before the next use of them it is
  /// found out whether somebody has changed the shards since.
  void note_values();
  /// Begins to find it out, on a thread: it takes about as long as to copy them.
  void look_at_noted(WorkerThread& thread);
  /// Waits, on the host, for the gradients that are on their way there; undefined before begin_reduce.
  std::function<void()> arrival() const { return arrival_; }
  /// This rank's shard of parameter `i` in the dtype of computation, where the shard itself is in host memory in
  /// another one, for an optimizer that writes both: that saves the writing at the next gathering.
  Tensor host_copy_to_write(size_t i);
  /// After a backward without reduction: the gradients of the full parameters stay until the next.
  void keep_unreduced();
  /// After a backward: parameters that show their shard get its gradient.
  void give_grads();
  /// Whether gradients were accumulated that are still to be reduced.
  bool has_unreduced() const;
  /// Forgets what a pass that failed has left behind. `keeps_gradients`: gradients of passes before it stay.
  void abandon(bool keeps_gradients = false);
  /// Changes when memory that stays from step to step is another.
  uint64_t layout_version() const { return layout_version_; }

 private:
  void lay_out();
  void make_shards();
  void take_over(ShardedParam& param);
  void allocate_full();
  void copy_out();
  Tensor source();
  bool renew_copy();
  static Tensor own_rows(const Tensor& whole, const ShardedParam& param);
  bool needs_host_copy() const;
  Tensor empty_parts() const;
  Tensor host_parts(c10::ScalarType dtype) const;
  Tensor empty_grads(c10::ScalarType dtype);

  void lay_out_grads();
  Tensor grads_in_place() const;
  Tensor grad_part(const Tensor& flat, const ShardedParam& param) const;
  Tensor pack_grads(double scale);
  int64_t grad_row() const;
  void forget_unused();
  Tensor receiving(c10::ScalarType dtype);
  void reduce_alone();
  void update_in_place();
  void check_noted();
  void add_later_grads(const std::vector<size_t>& params, const Tensor& into);
  void reduce_over_ranks();
  c10::ScalarType sum_dtype() const;
  c10::ScalarType reduced_dtype() const;
  void add_grads(Tensor reduced, c10::ScalarType dtype);
  void add_to_sum(const Tensor& more);

  std::string name_;
  std::vector<ShardedParam> params_;
  std::shared_ptr<Collective> ranks_;
  std::shared_ptr<Collective> replicas_;
  std::shared_ptr<Lanes> lanes_;
  GroupOptions options_;
  bool whole_ = false;
  Newest newest_ = Newest::kAllShards;
  int64_t shard_numel_ = 0;
  int64_t full_numel_ = 0;
  int64_t grad_numel_ = 0;
  int order_number_ = -1;           // in the order of calls; -1: nobody to compare with
  Tensor shards_;                   // [shard_numel], padded
  Tensor host_copy_;                // the same in the dtype of computation, for shards in host memory that have another
  Tensor device_shards_;            // the same on the device, as the last gather has sent it
  Tensor full_;                     // [full_numel] in the dtype of computation; its storage has memory while gathered
  Tensor arrived_;                  // [ranks * shard_numel], from the gathering to its end
  Tensor grads_;                    // [grad_numel] reduced gradients
  Tensor incoming_;                 // on the host: what is still to be added to them
  Tensor any_use_;                  // [1], not 0 when a rank had a gradient; undefined: this rank had one
  std::vector<Tensor> host_grads_;  // pinned memory in which gradients have been
  bool used_here_ = false;          // in the last reduction: this rank had a gradient
  bool first_grads_ = false;        // ... and there were none of an earlier backward
  uint64_t layout_version_ = 0;
  LaneTask gathering_;
  LaneTask reducing_;
  std::deque<LaneTask> sending_;     // gradients that leave one by one
  std::vector<int64_t> sent_bytes_;  // ... and the bytes of all that did in this backward
  Tensor receiving_;                 // where those of this backward go; undefined: nothing has left yet
  std::function<void()> arrival_;
  std::function<void()> update_;
  uint64_t noted_ = 0;            // fingerprint of the shards when they were copied from the full parameters
  std::future<uint64_t> looked_;  // ... and now, where somebody has asked for it
};

}  // namespace levin::detail
