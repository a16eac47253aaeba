#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "levin/kernels/block_sparse/attention.h"
#include "levin/nn/tensor/part.h"

namespace levin::models {

using at::Tensor;

/// BigBird's attention of one layer.
struct BlockAttentionOptions {
  /// Tokens of a block.
  int64_t block_size = 64;
  int64_t random_blocks = 3;
  int64_t num_heads = 12;
  int64_t max_positions = 4096;
  /// Counted from 0; the seed of its random blocks.
  int64_t layer = 0;
};

/// The random blocks of a layer in training: [head][blocks 1 to N - 2][random_blocks] of a text of N blocks. They are
/// those of transformers, which seeds numpy with the number of the layer before every call: the same in every step.
std::vector<std::vector<std::vector<int32_t>>> random_blocks_of(const BlockAttentionOptions& options, int64_t tokens);

/// Attention over blocks of tokens. A block sees the first, the last, its neighbours, itself and random ones; the first
/// and the last block see all. In evaluation the random blocks are the first one, as in transformers.
class BlockAttention {
 public:
  explicit BlockAttention(const BlockAttentionOptions& options) : options_(options) {}

  /// Whether texts of this length attend by blocks; shorter ones attend to all.
  bool applies(int64_t tokens) const {
    return options_.block_size > 0 && tokens > (5 + 2 * options_.random_blocks) * options_.block_size;
  }
  /// qkv [B, T, 3, H, D], T a multiple of the block, and mask [B, T] (1 for a token, or undefined) to [B, T, H * D].
  Tensor operator()(const Tensor& qkv, const Tensor& mask, bool training);
  /// From now on the heads of qkv are these of the layer's.
  void take_heads(Share heads);

 private:
  kernels::BlockPlan plan_of(int64_t tokens, bool training, c10::Device device);

  BlockAttentionOptions options_;
  /// Empty: all of them.
  Share heads_;
  std::mutex mutex_;
  std::map<std::tuple<int64_t, bool, c10::DeviceType, c10::DeviceIndex>, kernels::BlockPlan> plans_;
};

}  // namespace levin::models
