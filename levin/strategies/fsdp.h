#pragma once

#include "levin/strategies/sharding/strategy.h"
#include "levin/strategies/sharding_options.h"

namespace levin {

/// Parameters, gradients and optimizer states are divided over the ranks (docs/strategies.md).
class FsdpStrategy : public detail::ShardedStrategy {
 public:
  explicit FsdpStrategy(const FsdpOptions& options);
};

/// The same machine in DeepSpeed's words: stages 1, 2 and 3.
class ZeroStrategy : public detail::ShardedStrategy {
 public:
  explicit ZeroStrategy(const ZeroOptions& options);
};

namespace detail {
/// What the options ask for; an Error, one line, for what cannot be.
ShardingPlan plan_of(const FsdpOptions& options);
ShardingPlan plan_of(const ZeroOptions& options);
}  // namespace detail

}  // namespace levin
