#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "levin/strategies/gemini/placement.h"
#include "levin/strategies/sharding/residency.h"

namespace levin::detail {

/// Lets a placement decide which chunks are gathered, of groups that are chunks.
class GeminiResidency final : public Residency {
 public:
  /// `keep`, by chunk: it stays gathered within a step. `copies`: how often the parts of all ranks are in memory until
  /// a chunk is put together from them.
  GeminiResidency(std::vector<ShardGroup*> chunks, const std::vector<bool>& keep, int ranks, int copies,
                  PlacementOptions options, std::unique_ptr<MemorySource> source);

  void begin_pass(Pass pass, bool training) override;
  void before_use(const std::vector<ShardGroup*>& needed) override;
  std::vector<ShardGroup*> ahead(const std::vector<ShardGroup*>& needed) override;
  bool release_after_use(ShardGroup& group, Pass pass) override;
  void after_reduce(ShardGroup& group) override;
  void end_pass(Pass pass) override;
  void abandon_pass(Pass pass) override;

  const Placement& placement() const { return placement_; }

 private:
  std::vector<int> indices(const std::vector<ShardGroup*>& groups) const;
  void look();
  void release(int chunk);

  std::vector<ShardGroup*> groups_;
  std::unordered_map<const ShardGroup*, int> index_;
  Placement placement_;
};

}  // namespace levin::detail
