#pragma once

#include <cstdint>
#include <vector>

#include "levin/nn/tensor/part.h"

namespace levin {

/// Which tokens of a sequence each rank has. The sequence is cut into chunks that differ by one token at most: `size`
/// of them, of which rank i has chunk i, or balanced 2 * size, of which it has chunks i and 2 * size - 1 - i. In causal
/// attention the end of a sequence is the most work, and balanced all ranks have as much.
struct ContextLayout {
  int size = 1;
  bool balanced = true;

  /// The tokens of a rank in the whole sequence: one or two runs, in order. An Error where there are too few for all.
  std::vector<Share> runs(int64_t length, int rank) const;
  int64_t count(int64_t length, int rank) const;
  /// Of the rank that has most.
  int64_t most(int64_t length) const;
};

}  // namespace levin
