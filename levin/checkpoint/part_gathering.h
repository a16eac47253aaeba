#pragma once

#include <functional>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include "levin/checkpoint/shards.h"

namespace levin::detail {

/// Full tensors on rank 0, from the shards that ranks hold, one at a time: rank 0 asks for tensors by id, and the
/// others answer until it has all. Only rank 0 fails: the others continue until they are told.
///
///     PartGathering parts(group, {{"weight", {weight, *shards.find(weight)}}});
///     group.rank() == 0 ? (write(parts.whole("weight")), parts.end()) : parts.serve();
class PartGathering {
 public:
  /// What this rank holds.
  struct Part {
    Tensor tensor;
    ShardPlace place;
  };
  using Parts = std::unordered_map<std::string, Part>;

  PartGathering(Collective& group, Parts parts) : group_(group), parts_(std::move(parts)) {}

  /// On rank 0: the full tensor, on the CPU.
  Tensor whole(const std::string& id);
  /// On rank 0: no more will be asked.
  void end();
  /// On the others: sends what is asked for, and calls `sent` after each.
  void serve(const std::function<void(const Part&)>& sent = {});

 private:
  bool gather(const Part* part, Tensor* whole);
  /// The same of ranges (ShardPlace::slice).
  bool gather_slices(const Part& part, Tensor* whole);
  void send(const Tensor& tensor);
  void receive(const Tensor& into, int rank);

  Collective& group_;
  Parts parts_;
};

}  // namespace levin::detail
