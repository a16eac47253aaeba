#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "levin/distributed/collective.h"

namespace levin {

/// How many ranks each kind of parallelism takes. The product is the number of ranks; ep is inside of dp_shard x cp.
/// One of them may be -1: what the others leave. (torchtitan's nesting: tp is innermost, so its ranks are neighbours.)
struct ParallelSizes {
  /// Stages of a pipeline.
  int pp = 1;
  /// Copies of the model, of which gradients are averaged.
  int dp_replicate = 1;
  /// Ranks over which the state of one copy is sharded; they see different batches.
  int dp_shard = 1;
  /// Ranks that share a sequence. State is sharded over them too.
  int cp = 1;
  /// Ranks that share every large layer.
  int tp = 1;
  /// Ranks that share the experts of a layer: neighbours among dp_shard x cp, which it divides.
  int ep = 1;

  /// The same with every size known, on that many ranks. What does not multiply is an Error with the product:
  /// `[mesh] pp 2 x dp_shard 3 x tp 2 = 12, and there are 8 ranks`.
  ParallelSizes over(int ranks) const;
  int product() const { return pp * dp_replicate * dp_shard * cp * tp; }
  /// "pp 2 x tp 2": those that are not 1; "1" when all are.
  std::string text() const;
};

/// The ranks of a group laid out on named axes, and a group for each axis. The last axis runs fastest, so ranks that
/// are neighbours in it are neighbours in the run. One axis may be -1: what the others leave.
///
///     Mesh mesh(group, {{"data", 2}, {"tensor", 2}});      // ranks 0 1 | 2 3
///     mesh.group("tensor").all_reduce(activations);          // among 0 1, and among 2 3
///     mesh.coordinate("data");                               // 0 on ranks 0 1, 1 on ranks 2 3
///
/// Every rank of the group must make the same mesh.
class Mesh {
 public:
  Mesh(std::shared_ptr<Collective> group, const std::vector<std::pair<std::string, int>>& axes);
  /// The axes of parallel training: "pp", "dp_replicate", "dp_shard", "cp", "tp". Folded: "batch" (dp_replicate x
  /// dp_shard: each sees other data), "fsdp" (dp_shard x cp: state is sharded over it) and "loss" (dp_replicate x
  /// dp_shard x cp: each has other tokens). Of "fsdp": "ep", and "expert_shard" (ranks that have the same experts, over
  /// which their state is sharded); "expert_loss" is dp_replicate x expert_shard.
  Mesh(std::shared_ptr<Collective> group, const ParallelSizes& sizes);

  /// Another name for neighbouring axes together, from `outer` to `inner`. Every rank must call.
  void fold(const std::string& name, std::string_view outer, std::string_view inner);

  /// The ranks that differ from this one in that axis only.
  Collective& group(std::string_view axis) const { return *find(axis).group; }
  std::shared_ptr<Collective> shared_group(std::string_view axis) const { return find(axis).group; }
  int size(std::string_view axis) const { return find(axis).size; }
  /// Where this rank stands on that axis.
  int coordinate(std::string_view axis) const { return find(axis).coordinate; }
  bool has(std::string_view axis) const;
  /// The rank of the whole group that stands at `place` of that axis, and in all others where this one does.
  int rank_at(std::string_view axis, int place) const;
  /// All ranks of the mesh.
  Collective& whole() const { return *whole_; }
  const std::shared_ptr<Collective>& shared_whole() const { return whole_; }

 private:
  struct Axis {
    std::string name;
    int size = 1;
    /// Between neighbours, in ranks of the whole group.
    int stride = 1;
    int coordinate = 0;
    std::shared_ptr<Collective> group;
  };
  const Axis& find(std::string_view axis) const;
  void add(const std::string& name, int size, int stride);

  std::shared_ptr<Collective> whole_;
  std::vector<Axis> axes_;
};

}  // namespace levin
