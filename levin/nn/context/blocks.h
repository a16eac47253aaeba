#pragma once

#include <cstdint>
#include <vector>

#include "levin/nn/context/layout.h"

namespace levin::nn {

/// Some queries of a rank over some keys of another, as one attention. Shares are of the tokens that each has.
struct ContextBlock {
  enum class Kind {
    /// Every query sees every key.
    kFull,
    /// Queries and keys are the same tokens, and see those before them.
    kCausal,
    /// Some see some: positions must be compared.
    kSome,
  };
  Share queries, keys;
  Kind kind = Kind::kFull;

  bool operator==(const ContextBlock& other) const;
};

/// What queries of `rank` see of the keys of `owner`, in as few blocks as there are. window: keys that a query sees,
/// itself included; 0: all before it.
std::vector<ContextBlock> context_blocks(const ContextLayout& layout, int64_t length, int rank, int owner, bool causal,
                                         int64_t window);

/// Pairs of a query and a key that a rank multiplies.
int64_t context_work(const ContextLayout& layout, int64_t length, int rank, bool causal, int64_t window);

}  // namespace levin::nn
