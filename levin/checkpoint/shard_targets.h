#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <torch/nn/module.h>

#include "levin/checkpoint/shards.h"

namespace levin {

/// Who takes which tensors of a tree that is read: modules and optimizers of which this rank has shards, and where
/// their states stand in the tree. Whatever has no target is read in full.
///
///     ShardTargets targets(*strategy.shards());
///     targets.add({"model"}, *net);
///     targets.add({"optimizers", "0"}, opt);
class ShardTargets {
 public:
  /// Rows of a tensor, and the shape that they have here.
  struct Rows {
    int64_t start = 0;
    int64_t rows = 0;
    std::vector<int64_t> sizes;
    /// As in ShardPlace.
    std::shared_ptr<const TensorSlice> slice = {};
  };

  explicit ShardTargets(ShardMap& shards) : shards_(shards) {}

  /// Borrows neither of them: what is asked is found out now.
  void add(const std::vector<std::string>& path, const torch::nn::Module& module);
  void add(const std::vector<std::string>& path, const Optimizer& optimizer);

  /// What is taken of the tensor at a place of the tree whose full shape is `sizes`; nothing when all of it is taken.
  std::optional<Rows> find(const std::vector<std::string>& path, at::IntArrayRef sizes) const;
  /// The place of a shard at that place of a tree; null for what is none.
  const ShardPlace* find_part(const std::vector<std::string>& path, const Tensor& part) const;
  ShardMap& shards() const { return shards_; }

 private:
  struct Target {
    ShardPlace place;
    Rows rows;
  };
  const Target* find_target(const std::vector<std::string>& path) const;
  void put(const std::vector<std::string>& path, const ShardPlace& place, const Tensor& tensor);

  ShardMap& shards_;
  /// By place in the tree; of optimizers the place of a parameter's state.
  std::unordered_map<std::string, Target> targets_;
};

}  // namespace levin
