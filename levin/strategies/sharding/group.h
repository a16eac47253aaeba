#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "levin/checkpoint/shards.h"
#include "levin/distributed/collective.h"
#include "levin/strategies/sharding/lanes.h"

namespace levin::detail {

/// A parameter that is spread over ranks. The user's tensor itself (`param`) alternates: between steps it is this
/// rank's part, from forward to the end of backward it is the whole one, with or without memory behind it.
struct ShardedParam {
  std::string name;
  Tensor param;
  /// Of the whole.
  std::vector<int64_t> sizes;
  /// Rows of the first dimension on each rank (the last ones may have fewer, or none), and elements of a row.
  int64_t rows = 0;
  int64_t row_numel = 0;
  /// First element in the group's buffers of one rank, and in the whole buffer.
  int64_t shard_offset = 0;
  int64_t full_offset = 0;
  /// This rank's part: a view of the group's memory.
  Tensor shard;
  /// The whole: a view of storage that has memory only while the group is gathered.
  Tensor full;
  /// The reduced gradient of this rank's part.
  Tensor grad;
  ShardPlace place;
};

/// How the parameters of a group are kept.
struct GroupOptions {
  c10::Device device = at::kCPU;
  /// Shards and reduced gradients live in host memory.
  bool offload = false;
  bool pin_memory = true;
  std::optional<c10::ScalarType> param_dtype = {};
  std::optional<c10::ScalarType> reduce_dtype = {};
  /// Of reduced gradients; none: the dtype of the shards.
  std::optional<c10::ScalarType> grad_dtype = {};
};

/// Parameters that are gathered and reduced together: one all-gather, one reduce-scatter.
///
/// All memory is taken and given back on the compute stream; other streams wait for it and are waited for. So what is
/// at one time in memory does not depend on timing.
class ShardGroup {
 public:
  enum class State : uint8_t { kSharded, kGathering, kGathered };

  /// Takes this rank's part of parameters that are whole on every rank, and gives the wholes up.
  ShardGroup(std::string name, std::vector<ShardedParam> params, std::shared_ptr<Collective> ranks,
             std::shared_ptr<Collective> replicas, std::shared_ptr<Lanes> lanes, const GroupOptions& options);

  const std::string& name() const { return name_; }
  std::vector<ShardedParam>& params() { return params_; }
  State state() const { return state_; }
  /// Bytes of the whole parameters in the dtype in which they are gathered, and of this rank's part as it is kept.
  int64_t full_bytes() const { return full_bytes_; }
  int64_t shard_bytes() const { return shard_bytes_; }
  bool trained() const { return trained_; }

  /// Lets users see the shards, or the wholes: swaps the data of the parameters.
  void show_shards();
  void show_full();

  /// Starts to bring the whole parameters together; returns at once.
  void begin_gather();
  /// They are there when this returns, as far as the compute stream is concerned.
  void finish_gather();
  /// Gives the memory of the whole parameters back.
  void release();
  /// The whole parameters are out of date: the next gathering is a real one even when their memory was kept.
  void mark_stale() { stale_ = true; }
  bool stale() const { return stale_; }

  /// Takes the gradients of the whole parameters, sums them over the ranks and adds this rank's part to what is there.
  void begin_reduce();
  /// That of the pass before is in place when this returns.
  void finish_reduce();
  /// Takes a gradient that was there before the pass aside, and gives what was reduced to the parameters.
  void take_grads();
  void give_grads();
  /// Forgets what a pass that failed has left.
  void abandon();

 private:
  void make_shards();
  void adopt_changes();

  std::string name_;
  std::vector<ShardedParam> params_;
  std::shared_ptr<Collective> ranks_;
  std::shared_ptr<Collective> replicas_;
  std::shared_ptr<Lanes> lanes_;
  GroupOptions options_;
  State state_ = State::kSharded;
  bool stale_ = true;
  bool trained_ = false;
  int64_t full_bytes_ = 0;
  int64_t shard_bytes_ = 0;
  int64_t shard_numel_ = 0;
  int64_t full_numel_ = 0;
  Tensor shards_;   // [shard_numel], padded, on the device or in host memory
  Tensor full_;     // [full_numel] in the dtype of computation; its storage has memory while gathered
  Tensor arrived_;  // [ranks, shard_numel] between gathering and copying out
  LaneTask gathering_;
  LaneTask reducing_;
};

}  // namespace levin::detail
