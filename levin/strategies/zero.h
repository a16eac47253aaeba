#pragma once

#include <vector>

#include "levin/strategies/sharding/strategy.h"

namespace levin {

/// DeepSpeed's ZeRO in its own words: stages 1, 2 and 3 (docs/strategies.md).
class ZeroStrategy : public detail::ShardedStrategy {
 public:
  explicit ZeroStrategy(const ZeroOptions& options);
  static std::vector<NamedStrategy> names();
};

}  // namespace levin
