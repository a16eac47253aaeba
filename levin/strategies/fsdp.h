#pragma once

#include <vector>

#include "levin/strategies/sharding/strategy.h"

namespace levin {

/// Parameters, gradients and optimizer states are sharded over the ranks (docs/strategies.md).
class FsdpStrategy : public detail::ShardedStrategy {
 public:
  explicit FsdpStrategy(const FsdpOptions& options);
  /// Over groups of `ranks` neighbouring ranks; groups have copies. One rank: parameters stay full, as in "none".
  FsdpStrategy(FsdpOptions options, int ranks);
  static std::vector<NamedStrategy> names();
};

}  // namespace levin
